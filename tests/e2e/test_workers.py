"""`bargein serve --workers 2`: two front processes that look like one server, whatever dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bargein.client.audio import read_wav
from bargein.client.session import ConnectFailed, RealtimeClient
from bargein.client.turns import Microphone, converse
from bargein.http_api.doors import HOP
from bargein.models.bench_words import normal_words

from .conftest import DATA, Served, children, serving, start
from .peer import Peer
from .test_agent_call import ask, is_done
from .test_call import QUESTIONS, word_error
from .upstream import Upstream

SAID = normal_words("Of course. I am happy to help you with that today.")
MOST = 4


@dataclass(frozen=True)
class Both:
    """A server of two workers, each to be spoken to by itself."""

    served: Served
    directory: Path
    upstream: Upstream
    log: Path

    @asynccontextmanager
    async def http(self, number: int) -> AsyncIterator[aiohttp.ClientSession]:
        """Requests to one worker."""
        (folder,) = self.directory.glob("bargein-workers-*")
        connector = aiohttp.UnixConnector(str(folder / f"worker-{number}.sock"))
        async with aiohttp.ClientSession(f"http://127.0.0.1:{self.served.port}", connector=connector) as session:
            yield session

    async def get(self, number: int, path: str, **headers: str) -> tuple[int, Any]:
        async with self.http(number) as http, http.get(path, headers={k.replace("_", "-"): v for k, v in headers.items()}) as r:
            assert r.headers["x-bargein-worker"] == str(number + 1) or headers
            return r.status, await (r.json() if r.content_type == "application/json" else r.text())

    async def owner(self, session_id: str) -> int:
        """Which worker has a session."""
        for number in (0, 1):
            _, told = await self.get(number, "/v1/inspect", **{HOP: "9"})
            if session_id in [s["session_id"] for s in told["data"]]:
                return number
        raise AssertionError(session_id)

    async def call(self, stack: AsyncExitStack, number: int, key: str = "") -> RealtimeClient:
        """A call that the kernel gave to this worker."""
        for _ in range(100):
            try:
                call = await RealtimeClient(self.served.url, key).__aenter__()
            except ConnectFailed as problem:
                assert "server_full" in str(problem), problem
                await asyncio.sleep(0.05)  # until the call before, which was on the other, is no longer counted
                continue
            assert call._ws is not None and call._ws.response is not None
            if call._ws.response.headers["x-bargein-worker"] == str(number + 1):
                stack.push_async_exit(call)
                assert await call.wait("session.created", 0, 5)
                return call
            await call.__aexit__(None, None, None)
        raise AssertionError(f"no connection comes to worker {number + 1}")

    def workers(self) -> list[int]:
        """Their processes."""
        return [c for c in children(self.served.pid) if "http_api.worker" in Path(f"/proc/{c}/cmdline").read_text()]

    async def empty(self) -> None:
        """Wait until no session is left of the test before."""
        async with asyncio.timeout(10):
            while "\nbargein_realtime_sessions 0.0\n" not in (await self.get(0, "/metrics"))[1]:
                await asyncio.sleep(0.1)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("w")
    with Upstream() as upstream, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        args = ["--workers", "2", "--chat-base-url", upstream.url, "--chat-model", "stub"]
        args += ["--set", f"server.max_sessions={MOST}", "--set", "server.drain_s=8"]
        for served in serving(folder / "log", *args):
            told = Both(served, folder, upstream, folder / "log")
            asyncio.run(_ready(told))
            yield told


async def _ready(both: Both) -> None:
    """Both say so: one alone may be what the port's first answer came from."""
    async with asyncio.timeout(20):
        while True:
            try:
                if [(await both.get(n, "/health/ready"))[0] for n in (0, 1)] == [200, 200]:
                    return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)


async def said(call: RealtimeClient, text: str) -> list[str]:
    """Ask in writing -> the words of the reply."""
    mark = await ask(call, text)
    done = await call.wait(is_done, mark, 20)
    assert done is not None and done.event["response"]["status"] == "completed", done
    return normal_words(done.event["response"]["output"][0]["content"][0]["transcript"])


def test_calls_on_both_are_answered_and_seen_from_either(both: Both) -> None:
    async def spoken(call: RealtimeClient, name: str) -> str:
        await call.update(profile="fast")
        mic = Microphone(call)
        reply = await converse(call, mic, read_wav(DATA / "questions" / f"{name}.wav"), 40)
        await mic.stop()
        assert normal_words(reply.text) == SAID
        return reply.user_text

    async def run() -> None:
        async with AsyncExitStack() as stack:
            calls = [await both.call(stack, number) for number in (0, 1)]
            ids = [c.seen[0].event["session"]["id"] for c in calls]
            async with both.http(0) as http, http.get(f"/v1/inspect/{ids[1]}") as followed:
                assert followed.status == 200 and followed.headers["x-bargein-worker"] == "1"
                heard = await asyncio.gather(spoken(calls[0], "bees"), spoken(calls[1], "week"))
                async with asyncio.timeout(10):
                    while b'"response.done' not in await followed.content.readline():
                        pass
            for number in (0, 1):
                _, told = await both.get(number, "/v1/inspect")
                assert {s["session_id"] for s in told["data"] if s["live"]} == set(ids)
                _, metrics = await both.get(number, "/metrics")
                assert "\nbargein_realtime_sessions 2.0\n" in metrics and metrics.count("\nbargein_engine_jobs ") == 1
        for name, text in zip(("bees", "week"), heard, strict=True):
            assert word_error(QUESTIONS[name], text) == 0

    asyncio.run(run())


def test_a_key_of_one_worker_opens_a_call_on_the_other(both: Both) -> None:
    async def run() -> None:
        session = {"type": "realtime", "instructions": "Answer in one word."}
        async with AsyncExitStack() as stack:
            async with both.http(1) as http, http.post("/v1/realtime/client_secrets", json={"session": session}) as reply:
                key = (await reply.json())["value"]
            call = await both.call(stack, 0, key)
            assert call.seen[0].event["session"]["instructions"] == "Answer in one word."

    asyncio.run(run())


def test_a_webrtc_call_is_heard_beside_and_hung_up_through_the_other(both: Both) -> None:
    async def run() -> None:
        peer = await Peer(f"http://127.0.0.1:{both.served.port}").connect("?events=extended")
        created = await peer.wait("session.created", 0, 5)
        assert created is not None
        other = 1 - await both.owner(created.event["session"]["id"])
        call_id = peer.location.rsplit("/", 1)[1]
        async with both.http(other) as http:
            async with http.ws_connect(f"/v1/realtime?call_id={call_id}", protocols=("realtime",)) as side:
                assert side.protocol == "realtime"
                assert json.loads(await side.receive_str(timeout=5))["type"] == "session.created"
                await side.send_json({"type": "session.update", "session": {"type": "realtime", "instructions": "Be brief."}})
                assert await peer.wait("session.updated", 0, 5)
                async with http.post(f"{peer.location}/hangup") as reply:
                    assert (reply.status, (await reply.json())["id"]) == (200, call_id)
                message = await side.receive(timeout=10)
                while message.type is aiohttp.WSMsgType.TEXT:
                    message = await side.receive(timeout=10)
                assert message.type is aiohttp.WSMsgType.CLOSE and message.data == 1000
            await asyncio.wait_for(peer.closed.wait(), 10)
            async with http.post(f"{peer.location}/hangup") as reply:
                assert reply.status == 404
        await peer.close()

    asyncio.run(run())


def test_a_response_of_one_is_continued_by_the_other(both: Both) -> None:
    async def run() -> None:
        async with both.http(0) as one, both.http(1) as other:
            async with one.post("/v1/responses", json={"model": "stub", "input": "Say something."}) as reply:
                first = await reply.json()
                assert reply.status == 200, first
            async with other.get(f"/v1/responses/{first['id']}") as reply:
                assert await reply.json() == first
            ask = {"model": "stub", "input": "And more.", "previous_response_id": first["id"]}
            async with other.post("/v1/responses", json=ask) as reply:
                assert reply.status == 200, await reply.text()
            told = [m["content"] for m in both.upstream.requests[-1]["messages"]]
            assert told[0] == "Say something." and normal_words(told[1]) == SAID and told[2] == "And more."

    asyncio.run(run())


def test_as_many_sessions_as_one_server_takes(both: Both) -> None:
    async def run() -> None:
        await both.empty()
        async with AsyncExitStack() as stack:
            calls = [await both.call(stack, number) for number in (0, 1, 0, 0)]
            for _ in range(6):  # whoever answers
                with pytest.raises(ConnectFailed, match="server_full"):
                    async with RealtimeClient(both.served.url):
                        pass
            await calls[0].send("session.close")
            await calls[0].wait(lambda s: False, len(calls[0].seen), 3)
            await both.call(stack, 1)

    asyncio.run(run())


def test_a_killed_worker_takes_only_its_own_calls(both: Both) -> None:
    async def run() -> None:
        await both.empty()
        async with AsyncExitStack() as stack:
            stays, goes = await both.call(stack, 0), await both.call(stack, 1)
            before = both.workers()
            victim = next(w for w in before if _holds(w, both.served.port, goes))
            os.kill(victim, signal.SIGKILL)
            await goes.wait(lambda s: False, len(goes.seen), 5)
            assert goes.closed is not None
            async with RealtimeClient(both.served.url) as call:  # nobody who calls now notices
                assert await said(call, "Say something.") == SAID
            assert await said(stays, "Say something.") == SAID and stays.closed is None
            await _ready(both)
            assert len(both.workers()) == 2 and victim not in both.workers()
            _, metrics = await both.get(0, "/metrics")
            assert "\nbargein_realtime_sessions 1.0\n" in metrics, "the dead one's session counts no more"
            assert await said(await both.call(stack, 1), "Say something.") == SAID

    asyncio.run(run())


def _holds(worker: int, port: int, call: RealtimeClient) -> bool:
    """Whether a process has a call's connection."""
    assert call._ws is not None
    _, ours = call._ws.local_address[:2]
    inode = next(
        line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if line.split()[1].endswith(f":{port:04X}") and line.split()[2].endswith(f":{ours:04X}")
    )  # fmt: skip
    links = [os.readlink(x) for x in Path(f"/proc/{worker}/fd").iterdir() if x.is_symlink()]
    return f"socket:[{inode}]" in links


def test_a_killed_engine_drops_no_call_of_either(both: Both) -> None:
    async def run() -> None:
        await both.empty()
        async with AsyncExitStack() as stack:
            calls = [await both.call(stack, number) for number in (0, 1)]
            mark = await ask(calls[0], "Tell me a story.")
            assert await calls[0].wait("response.output_audio.delta", mark, 20)
            os.kill(both.served.processes()["engine"], signal.SIGKILL)
            assert await calls[0].wait(is_done, mark, 10)
            await asyncio.sleep(0.2)
            await _ready(both)
            for call in calls:
                assert await said(call, "Say something.") == SAID and call.closed is None

    asyncio.run(run())


def test_the_end_is_one_server_s_too(both: Both) -> None:
    """The last of the module: SIGTERM to the parent."""

    async def run() -> None:
        await both.empty()
        async with AsyncExitStack() as stack:
            calls = [await both.call(stack, number) for number in (0, 1)]
            marks = [await ask(call, "Say something.") for call in calls]
            for call, mark in zip(calls, marks, strict=True):
                assert await call.wait("response.output_audio.delta", mark, 20)
            os.kill(both.served.pid, signal.SIGTERM)
            await asyncio.sleep(0.3)
            for number in (0, 1):
                assert await both.get(number, "/health/ready") == (503, {"status": "draining"})
            with pytest.raises(ConnectFailed, match="503"):
                async with RealtimeClient(both.served.url):
                    pass
            for call, mark in zip(calls, marks, strict=True):
                done = await call.wait(is_done, mark, 8)
                assert done is not None and done.event["response"]["status"] == "completed"
                await call.send("session.close")

    (folder,) = both.directory.glob("bargein-workers-*")
    assert folder.stat().st_mode & 0o777 == 0o700
    everybody = [both.served.pid, *descendants(both.served.pid)]
    asyncio.run(run())
    gone(everybody)
    log = both.log.read_text()
    assert log.count("listening at") == 1 and log.count("ready at") == 3, "at first, and after two deaths"
    assert " worker 1 INFO " in log and " worker 2 INFO " in log and "Traceback" not in log
    assert not list(both.directory.glob("bargein-workers-*"))


def descendants(pid: int) -> list[int]:
    found = children(pid)
    return found + [x for child in found for x in descendants(child)]


def gone(pids: list[int]) -> None:
    until = time.monotonic() + 10
    while left := [pid for pid in pids if Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes()]:
        assert time.monotonic() < until, left
        time.sleep(0.05)


def test_nothing_is_left_of_a_parent_that_was_killed(tmp_path: Path) -> None:
    process, _ = start("--workers", "2", log=tmp_path / "log")
    until = time.monotonic() + 60
    while "ready at" not in (tmp_path / "log").read_text():
        assert time.monotonic() < until and process.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.1)
    everybody = descendants(process.pid)
    assert len(everybody) >= 4  # the loader, its engine, two workers
    process.kill()
    process.wait(5)
    gone(everybody)


@pytest.mark.parametrize(
    ("args", "said"),
    [(["--agent", "/nowhere/agent.toml"], "/nowhere/agent.toml: No such file"), (["--host", "10.255.0.1"], "cannot listen on")],
)
def test_what_cannot_start_says_why_once(tmp_path: Path, args: list[str], said: str) -> None:
    process, _ = start("--workers", "3", *args, log=tmp_path / "log")
    assert process.wait(30) == 2
    lines = [x for x in (tmp_path / "log").read_text().splitlines() if x.startswith("bargein:")]
    assert len(lines) == 1 and said in lines[0]
