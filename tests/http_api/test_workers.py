"""Several workers in one process, without an engine: what they count together, and what one asks the others for."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from bargein.engine import protocol as p
from bargein.engine.client import EngineClient
from bargein.engine.fleet import Fleet
from bargein.http_api import board as boards
from bargein.http_api.app import make_app
from bargein.http_api.board import Board, Crowded, Seat, SharedAccounts
from bargein.http_api.config import Config, ConfigError, Http, Inspector, Server, load
from bargein.http_api.doors import HOP, Refused
from bargein.http_api.errors import ApiError
from bargein.http_api.gate import Accounts, Gate
from bargein.http_api.routes.responses import STORE, Stored
from bargein.http_api.services import SERVICES, Services
from bargein.http_api.siblings import listen
from bargein.http_api.worker import stay_connected
from bargein.http_api.workers import reserved
from bargein.pipeline.recording import Recorder
from bargein.pipeline.writing import Turn

KEYS = Server(api_keys=("right",), admin_keys=("admin",), max_sessions=3, workers=2)
KEY, ADMIN = {"Authorization": "Bearer right"}, {"Authorization": "Bearer admin"}


class Linked(EngineClient):
    """An engine that is there."""

    ready = True


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board.make(tmp_path / "board", 2)


def seats(board: Board, directory: Path) -> list[Seat]:
    """Each with its own opening of the board, as a process has."""
    return [Seat(Board(directory / "board", board.num), n, directory, n == 0) for n in range(board.num)]


class Two:
    """Two workers, each on a port of its own so that a test can choose."""

    def __init__(self, apps: list[web.Application], ports: list[int], http: aiohttp.ClientSession) -> None:
        self.apps, self._ports, self._http = apps, ports, http
        self.services = [app[SERVICES] for app in apps]

    async def ask(self, number: int, method: str, path: str, **named: Any) -> tuple[int, Any, Any]:
        """Status, JSON or text, headers."""
        async with self._http.request(method, f"http://127.0.0.1:{self._ports[number]}{path}", **named) as reply:
            body = await (reply.json() if reply.content_type == "application/json" else reply.text())
            return reply.status, body, reply.headers


@asynccontextmanager
async def two(directory: Path, config: Config) -> AsyncIterator[Two]:
    both = seats(Board.make(directory / "board", 2), directory)
    apps, ports = [], []
    async with contextlib.AsyncExitStack() as stack:
        for seat in both:
            app = make_app(Services(config, Fleet([Linked()]), seat))
            app.on_startup.clear()  # no decoder: nothing here decodes
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            await listen(runner, seat)
            apps.append(app)
            ports.append(runner.addresses[0][1])
        yield Two(apps, ports, await stack.enter_async_context(aiohttp.ClientSession()))


# --- what is counted -------------------------------------------------------------------------------------------------


def test_the_last_place_is_given_once(tmp_path: Path, board: Board) -> None:
    one, other = seats(board, tmp_path)
    assert one.take(1, 3) and other.take(1, 3) and one.take(2, 3)
    assert not other.take(2, 3) and not one.take(3, 3)
    other.tell(0)
    assert board.sessions == 2 and other.take(1, 3)


def test_what_a_dead_worker_counted_is_gone_but_its_time_is_not(tmp_path: Path, board: Board) -> None:
    one, other = seats(board, tmp_path)
    one.take(1, 9), other.take(1, 9)
    other.set_state("ready")
    assert one.spent_s(1.0) == 1.0 and other.spent_s(5.0) == 6.0
    gates = [Gate(0, 2, SharedAccounts(seat)) for seat in (one, other)]
    for gate in gates:
        gate.enter("me", 0.0)
    board.clear(1)
    assert (board.sessions, board.state(1), board.spent_s) == (1, "starting", 6.0)
    assert other.spent_s(0.5) == 6.5, "the next one's time comes on top"
    gates[0].enter("me", 0.0)
    with pytest.raises(ApiError, match="more than 2"):
        gates[0].enter("me", 0.0)


@pytest.mark.parametrize("shared", [False, True])
def test_limits_of_a_key_are_the_same_in_one_process_and_in_two(tmp_path: Path, board: Board, shared: bool) -> None:
    """The same requests, all through one gate or by turns through two."""
    gates = [Gate(4, 2, SharedAccounts(seat)) for seat in seats(board, tmp_path)] if shared else [Gate(4, 2, Accounts())] * 2
    told = [gates[0].enter("a", 0.0), gates[1].enter("a", 0.0)]
    assert [t["x-ratelimit-remaining-requests"] for t in told] == ["3", "2"]
    with pytest.raises(ApiError) as crowd:
        gates[0].enter("a", 0.0)
    assert crowd.value.code == "concurrency_limit_exceeded"
    gates[1].enter("b", 0.0)
    gates[0].leave("a"), gates[1].leave("a")
    gates[1].enter("a", 0.0)
    gates[1].leave("a")
    with pytest.raises(ApiError) as often:
        gates[0].enter("a", 0.0)
    assert often.value.code == "rate_limit_exceeded" and often.value.headers["Retry-After"] == "16"
    assert gates[1].enter("a", 15.1)["x-ratelimit-remaining-requests"] == "0"


def test_an_account_is_forgotten_only_while_nothing_of_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "SETS", 1)
    monkeypatch.setattr(boards, "WAYS", 2)
    board = Board.make(tmp_path / "board", 1)
    accounts = SharedAccounts(Seat(board, 0, tmp_path))
    gate = Gate(10, 5, accounts)
    gate.enter("a", 0.0), gate.enter("b", 1.0), gate.leave("a")
    gate.enter("c", 2.0)  # in the place of a
    with pytest.raises(Crowded):
        board.account("d", 0, 3.0, 10)
    with pytest.raises(ApiError) as full:
        gate.enter("d", 3.0)
    assert full.value.status == 503
    gate.leave("b")
    assert gate.enter("d", 4.0)["x-ratelimit-remaining-requests"] == "9" and gate.num_running == 2


# --- the port, the engine, the configuration ---------------------------------------------------------------------------


def test_a_port_is_shared_by_workers_and_nobody_else() -> None:
    with reserved("127.0.0.1", 0) as port:
        shared = []
        for _ in range(2):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(("127.0.0.1", port))
            sock.listen()
            shared.append(sock)
        with pytest.raises(OSError, match="in use"), reserved("127.0.0.1", port):
            pass
        for sock in shared:
            sock.close()
        with pytest.raises(OSError, match="in use"), reserved("127.0.0.1", port):  # while none listens, too
            pass
        with pytest.raises(ConnectionRefusedError):  # nobody waits for one that never accepts
            socket.create_connection(("127.0.0.1", port), 1)
    with socket.create_server(("127.0.0.1", port)), pytest.raises(OSError, match="in use"), reserved("127.0.0.1", port):
        pass
    with reserved("127.0.0.1", port) as again:
        assert again == port


def test_a_worker_connects_again_when_the_engine_is_replaced(tmp_path: Path) -> None:
    async def run() -> None:
        link, client, seen = tmp_path / "engine.sock", EngineClient(), []
        client.on_change = lambda: seen.append(client.hello.pid if client.hello is not None else 0)

        async def engine(number: int) -> asyncio.Server:
            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write(p.pack(p.Hello(True, number, {})))
                await reader.read()
                writer.close()

            server = await asyncio.start_unix_server(serve, str(tmp_path / f"engine-{number}.sock"))
            link.unlink(missing_ok=True)
            link.symlink_to(f"engine-{number}.sock")
            return server

        async def until(pids: list[int]) -> None:
            async with asyncio.timeout(5):
                while seen != pids:
                    await asyncio.sleep(0.01)

        keeping = asyncio.create_task(stay_connected(client, link))
        await asyncio.sleep(0.1)  # there is none yet
        first = await engine(1)
        await until([1])
        first.close()
        client.close()  # the connection is lost
        await until([1, 0])
        second = await engine(2)
        await until([1, 0, 2])
        assert client.ready
        keeping.cancel()
        client.close()
        second.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"server.workers": "0"}, "server.workers: 0 is not from 1 to 64"),
        ({"server.workers": "65"}, "server.workers: 65"),
        ({"server.workers": "two"}, "server.workers: Expected `int`"),
        ({"server.workers": "2", "engine.mode": "inproc"}, "server.workers: more than 1"),
    ],
)
def test_bad_numbers_of_workers_are_refused(flags: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load(None, {}, flags)


def test_a_number_of_workers_may_come_from_anywhere() -> None:
    assert load(None, {"BARGEIN_SERVER_WORKERS": "4"}, {}).server.workers == 4
    assert load(None, {}, {}).server.workers == 1


# --- what one asks the other for ---------------------------------------------------------------------------------------


def test_the_last_session_is_not_taken_twice(tmp_path: Path) -> None:
    async def run() -> None:
        async with two(tmp_path, Config(server=KEYS)) as pair:
            one, other = pair.services
            with one.opening(), other.opening(), one.opening():
                assert one.all_sessions == other.all_sessions == 3 and other.num_sessions == 1
                full = other.why_full()
                assert full is not None and full.status == 503
                with pytest.raises(Refused), other.opening():  # it had asked a moment before
                    pass
                status, body, _ = await pair.ask(0, "GET", "/metrics", headers=KEY)
                assert status == 200 and "\nbargein_realtime_sessions 3.0\n" in body
            await asyncio.sleep(0)
            assert one.all_sessions == 0 and other.why_full() is None

    asyncio.run(run())


def test_a_key_made_by_one_opens_the_other_until_it_expires(tmp_path: Path) -> None:
    async def run() -> None:
        async with two(tmp_path, Config(server=KEYS)) as pair:
            status, made, headers = await pair.ask(1, "POST", "/v1/realtime/client_secrets", headers=KEY, json={})
            assert status == 200 and made["value"].startswith("ek_01") and headers["x-bargein-worker"] == "2"
            bearer = {"Authorization": f"Bearer {made['value']}"}
            for number in (0, 1):  # let in, and told that this is no upgrade
                assert (await pair.ask(number, "GET", "/v1/realtime", headers=bearer))[0] == 426
            wrong = {"Authorization": f"Bearer ek_01{'x' * 32}"}
            assert (await pair.ask(0, "GET", "/v1/realtime", headers=wrong))[0] == 401
            brief = pair.services[1].secrets.mint({}, -1)
            late = {"Authorization": f"Bearer {brief.value}"}
            assert (await pair.ask(0, "GET", "/v1/realtime", headers=late))[0] == 401
            assert (await pair.ask(0, "GET", f"/v1/telephony/twilio?token={made['value']}"))[0] == 426

    asyncio.run(run())


def test_a_response_kept_by_one_is_found_and_forgotten_by_the_other(tmp_path: Path) -> None:
    async def run() -> None:
        limits = Http(requests_per_minute=100)
        async with two(tmp_path, Config(server=KEYS, http=limits)) as pair:
            kept = Stored({"id": "resp_1", "object": "response"}, [{"id": "msg_1"}], (Turn("user", "Hello"),))
            pair.apps[0][STORE].keep(kept)
            for number in (0, 1):
                status, body, headers = await pair.ask(number, "GET", "/v1/responses/resp_1", headers=KEY)
                assert status == 200 and body == kept.body and headers["x-bargein-worker"] == str(number + 1)
                assert headers["x-ratelimit-remaining-requests"] == str(99 - number), "a request passed on counts once"
            status, body, _ = await pair.ask(1, "GET", "/v1/responses/resp_1/input_items", headers=KEY)
            assert status == 200 and body["data"] == kept.inputs
            ask = {"model": "default", "input": "And then?", "previous_response_id": "resp_1", "temperature": 99}
            _, told, _ = await pair.ask(1, "POST", "/v1/responses", headers=KEY, json=ask)
            assert told["error"]["param"] != "previous_response_id", "found; what is wrong comes later"
            _, told, _ = await pair.ask(1, "POST", "/v1/responses", headers=KEY, json=ask | {"previous_response_id": "resp_2"})
            assert told["error"]["param"] == "previous_response_id"
            assert (await pair.ask(1, "GET", "/v1/responses/resp_1"))[0] == 401, "nothing is asked for a stranger"
            assert (await pair.ask(1, "DELETE", "/v1/responses/resp_1", headers=KEY))[0] == 200
            for number in (0, 1):
                status, body, _ = await pair.ask(number, "GET", "/v1/responses/resp_1", headers=KEY)
                assert status == 404 and body["error"]["code"] == "not_found"

    asyncio.run(run())


def test_the_way_between_workers_is_closed_to_others(tmp_path: Path) -> None:
    async def run() -> None:
        async with two(tmp_path, Config(server=KEYS)) as pair:
            secret = pair.services[0].secrets.mint({})
            pair.apps[0][STORE].keep(Stored({"id": "resp_1"}, [], ()))
            for path in (f"/workers/secrets/{secret.value}", "/workers/responses/resp_1"):
                assert (await pair.ask(0, "GET", path, headers={HOP: "1"} | KEY))[0] == 404
            assert (await pair.ask(0, "GET", "/v1/responses/resp_1", headers={HOP: "1"}))[0] == 401

    asyncio.run(run())


def test_sessions_are_listed_followed_and_forgotten_from_either(tmp_path: Path) -> None:
    async def run() -> None:
        config = Config(server=KEYS, inspector=Inspector(session_dir=str(tmp_path / "calls")))
        async with two(tmp_path, config) as pair:
            watches = [s.watch("websocket", "")(f"sess_{n}") for n, s in enumerate(pair.services)]
            await asyncio.to_thread(_wait_for, tmp_path / "calls" / "sess_0" / "audio.wav")
            await asyncio.to_thread(_wait_for, tmp_path / "calls" / "sess_1" / "audio.wav")
            for number in (0, 1):
                status, body, _ = await pair.ask(number, "GET", "/v1/inspect", headers=ADMIN)
                told = {s["session_id"]: (s["live"], s["recorded"]) for s in body["data"]}
                assert status == 200 and told == {"sess_0": (True, True), "sess_1": (True, True)} and len(body["data"]) == 2
                assert (await pair.ask(number, "DELETE", "/v1/inspect/sess_1", headers=ADMIN))[0] == 409, "it is not over"
            following = asyncio.create_task(pair.ask(0, "GET", "/v1/inspect/sess_1", headers=ADMIN))
            while not watches[1].relay.is_watched:
                await asyncio.sleep(0.01)
            watches[1].client_event('{"type": "session.update"}')
            for watch in watches:
                watch.end()
            status, lines, headers = await following
            assert status == 200 and "session.update" in lines and headers["x-bargein-worker"] == "1"
            assert (await pair.ask(0, "GET", "/v1/inspect/sess_1"))[0] == 401
            await asyncio.to_thread(_wait_for, tmp_path / "calls" / "sess_1" / "turns.json")
            while (await pair.ask(0, "DELETE", "/v1/inspect/sess_1", headers=ADMIN))[0] == 409:  # its last lines are written
                await asyncio.sleep(0.01)
            for number in (0, 1):
                _, body, _ = await pair.ask(number, "GET", "/v1/inspect", headers=ADMIN)
                assert [s["session_id"] for s in body["data"]] == ["sess_0"]
                assert (await pair.ask(number, "DELETE", "/v1/inspect/sess_1", headers=ADMIN))[0] == 404

    asyncio.run(run())


def test_metrics_tell_each_worker_apart_and_the_engine_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with two(tmp_path, Config(server=KEYS)) as pair:
            for services in pair.services:
                services.engine.clients[0].load = p.Load(1, 0, {"stt": p.LaneLoad(1, 0, 0.1, 1, 1)}, (0,) * 13, 1.0, 1)
            for number in (0, 1, 1):
                await pair.ask(number, "GET", "/health")
            _, body, _ = await pair.ask(0, "GET", "/metrics", headers=KEY)
            lines = body.splitlines()
            counts = [x for x in lines if x.startswith("bargein_http_requests_total") and "/health" in x]
            assert [x.split()[-1] for x in counts] == ["1.0", "2.0"] and 'worker="2"' in counts[1]
            assert sum(x.startswith("bargein_engine_answered_total") for x in lines) == 1
            assert len([x for x in lines if x.startswith("# TYPE")]) == len({x for x in lines if x.startswith("# TYPE")})

    asyncio.run(run())


def test_a_sibling_that_has_died_has_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with two(tmp_path, Config(server=KEYS)) as pair:
            (tmp_path / "worker-1.sock").unlink()
            assert (await pair.ask(0, "GET", "/v1/responses/resp_1", headers=KEY))[0] == 404
            assert (await pair.ask(0, "GET", "/v1/inspect", headers=ADMIN))[0] == 200
            assert (await pair.ask(0, "GET", "/metrics", headers=KEY))[0] == 200
            lost = {"Authorization": f"Bearer ek_01{'x' * 32}"}
            assert (await pair.ask(0, "GET", "/v1/realtime", headers=lost))[0] == 401

    asyncio.run(run())


def test_another_process_leaves_a_live_recording_alone(tmp_path: Path) -> None:
    mine = Recorder(tmp_path, 30, 2000)
    recording = mine.start("sess_live", "websocket")
    _wait_for(tmp_path / "sess_live" / "audio.wav")
    theirs = Recorder(tmp_path, 0, 0, tidy_now=False)  # would keep nothing
    theirs.tidy()
    assert theirs.is_live("sess_live") and not theirs.delete("sess_live") and theirs.list()[0]["live"] is True
    assert not theirs.is_live("../sess_live")
    mine.shut("sess_live")
    assert theirs.is_live("sess_live"), "until the whole folder is written"
    mine.finished(recording._folder)
    assert not theirs.is_live("sess_live") and theirs.delete("sess_live")
    mine.close()
    theirs.close()


def _wait_for(path: Path) -> None:
    import time

    until = time.monotonic() + 5
    while not path.exists():
        assert time.monotonic() < until, path
        time.sleep(0.01)
