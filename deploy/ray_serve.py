"""Calls over many machines, placed by Ray Serve: every replica runs a whole server, the placer says which one to call.

    pip install "ray[serve]"                      # on every machine, beside bargein; `ray start …` makes them a cluster
    python deploy/ray_serve.py --min 1 --max 8    # on one of them

    GET  http://PLACER:8000/v1/realtime/placement   {"url": "ws://10.0.0.7:43117/v1/realtime", "server": "http://…"}
    anything else                                   307 to the server with the least load: HTTP routes, WebRTC's offer

A WebSocket is opened with the server that was named, not through Ray's proxy: the proxy would carry each 20 ms of audio
through two more processes, and ends connections of its own when it is restarted; WebRTC's media goes to the server
directly anyway. A call stays where it was placed. The load is the server's own figure: the share of its sessions or of its
engine's processors that is in use, whichever is more; Ray adds replicas above `--target` of it and takes them away below.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import ray
from ray import serve
from ray.serve.config import AutoscalingContext
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

EVERY_S = 0.5  # how often a replica tells of its load
SILENT_S = 2.0  # a replica that has said nothing for so long is not sent calls
ARRIVES_S = 3.0  # a call that was placed and is not counted by the server yet
READY_S = 300.0
SAMPLE = re.compile(r"^(bargein_\w+?)(?:\{[^}]*\})? (\S+)$", re.M)


def samples(text: str) -> dict[str, float]:
    """The sum over its labels of every metric."""
    out: dict[str, float] = {}
    for name, value in SAMPLE.findall(text):
        out[name] = out.get(name, 0.0) + float(value)
    return out


def ends_with_its_parent() -> None:
    """A replica that is killed takes its server along, which drains its calls."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


@serve.deployment(name="Placer", num_replicas=1, ray_actor_options={"num_cpus": 0})
class Placer:
    """Which servers there are and how busy they are, as they tell; sends each call to the least busy."""

    def __init__(self, servers: Any) -> None:
        self._told: dict[str, tuple[float, dict[str, float]]] = {}
        self._placed: dict[str, list[float]] = {}
        self._servers = servers  # deployed with this one

    def tell(self, url: str, told: dict[str, float]) -> None:
        """A replica's load, now."""
        self._told[url] = (time.monotonic(), told)

    def servers(self) -> dict[str, dict[str, float]]:
        """Those that can take a call, and what they said of themselves."""
        now = time.monotonic()
        self._told = {url: x for url, x in self._told.items() if now - x[0] < SILENT_S}
        return {url: told for url, (_, told) in self._told.items()}

    def place(self) -> str | None:
        """The server for the next call; None: there is none with room."""
        now = time.monotonic()
        found: dict[str, float] = {}
        for url, told in self.servers().items():
            self._placed[url] = [at for at in self._placed.get(url, []) if now - at < ARRIVES_S]
            sessions = told["sessions"] + len(self._placed[url])
            if told["ready"] and sessions < told["max_sessions"]:
                found[url] = max(told["load"], sessions / told["max_sessions"])
        if not found:
            return None
        url = min(found, key=lambda u: (found[u], len(self._placed[u])))
        self._placed[url].append(now)
        return url

    async def __call__(self, request: Request) -> Response:
        """One request to the cluster's address."""
        if request.url.path == "/health":
            return JSONResponse({"status": "ok", "servers": self.servers()})
        url = self.place()
        if url is None:
            error = {"message": "every server is full or starting", "type": "server_error", "code": "server_full"}
            return JSONResponse({"error": error}, 503, {"Retry-After": "5"})
        query = f"?{request.url.query}" if request.url.query else ""
        if request.url.path == "/v1/realtime/placement":
            return JSONResponse({"url": f"ws{url.removeprefix('http')}/v1/realtime{query}", "server": url})
        return RedirectResponse(f"{url}{request.url.path}{query}", 307)


@serve.deployment(name="Server")
class Server:
    """One server, as a process of its own on this replica's machine."""

    def __init__(self, command: list[str], address: str, drain_s: float) -> None:
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        self._url = f"http://{address or ray.util.get_node_ip_address()}:{port}"
        self._drain_s = drain_s
        more = ["--host", "0.0.0.0", "--port", str(port), "--set", f"server.drain_s={drain_s}"]
        self._process = subprocess.Popen([*command, *more], preexec_fn=ends_with_its_parent)
        self._load = 0.0
        self._before: tuple[float, float] | None = None
        self._await_ready()
        self._stop = threading.Event()
        threading.Thread(target=self._tell, daemon=True).start()

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(self._url + path, timeout=2) as reply:
            return str(reply.read().decode())

    def _await_ready(self) -> None:
        until = time.monotonic() + READY_S
        while time.monotonic() < until and self._process.poll() is None:
            try:
                self._get("/health/ready")
                return
            except (OSError, urllib.error.URLError):
                time.sleep(0.5)
        raise RuntimeError(f"the server did not become ready (status {self._process.poll()})")

    def _figures(self) -> dict[str, float]:
        """The server's account of itself, now."""
        found = samples(self._get("/metrics"))
        now, busy = time.monotonic(), found.get("bargein_engine_cpu_seconds_total", 0.0)
        share = 0.0
        if self._before is not None and now > self._before[0]:
            share = (busy - self._before[1]) / (now - self._before[0]) / (os.cpu_count() or 1)
        if self._before is None or now - self._before[0] > 2:
            self._before = (now, busy)
        sessions, most = found["bargein_realtime_sessions"], found["bargein_realtime_sessions_max"]
        self._load = 0.5 * self._load + 0.5 * min(1.0, max(share, sessions / most))
        return {"load": self._load, "sessions": sessions, "max_sessions": most, "ready": found["bargein_engine_ready"]}

    def _tell(self) -> None:
        while not self._stop.wait(EVERY_S):
            try:
                serve.get_app_handle("placer").tell.remote(self._url, self._figures())
            except Exception as problem:  # the next time, or the placer forgets this server, as it should
                print(f"{self._url}: {problem}", file=sys.stderr)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """What Ray's autoscaler is told."""
        return {"load": self._load}

    def check_health(self) -> None:
        """Ray replaces a replica whose server has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the server ended with status {self._process.returncode}")

    def about(self) -> dict[str, Any]:
        """Where it is."""
        return {"url": self._url, "pid": self._process.pid, "replica_pid": os.getpid()}

    def __call__(self) -> dict[str, Any]:
        return self.about()

    def __del__(self) -> None:
        if hasattr(self, "_stop"):
            self._stop.set()
        self._process.terminate()
        try:
            self._process.wait(self._drain_s + 10)
        except subprocess.TimeoutExpired:
            self._process.kill()


class Policy:
    """As many replicas as bring the mean load to `target`; fewer only when one less would still be below it."""

    def __init__(self, target: float) -> None:
        self._target = target

    def __call__(self, ctx: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        loads = list((ctx.aggregated_metrics or {}).get("load", {}).values())
        if not loads:
            return ctx.target_num_replicas, {}
        wanted = max(1, -(-sum(loads) // self._target))
        if wanted < ctx.current_num_replicas and sum(loads) > 0.8 * self._target * (ctx.current_num_replicas - 1):
            wanted = ctx.current_num_replicas
        return int(wanted), {}


def deploy(
    command: list[str], *, fewest: int, most: int, cpus: float, target: float, drain_s: float, address: str = ""
) -> None:
    """Deploy both on the cluster that this process is connected to."""
    scaling = {
        "min_replicas": fewest, "max_replicas": most, "initial_replicas": fewest, "upscale_delay_s": 5,
        "downscale_delay_s": 120, "metrics_interval_s": 2, "look_back_period_s": 10,
        "policy": {"policy_function": Policy, "policy_kwargs": {"target": target}},
    }  # fmt: skip
    servers = Server.options(
        autoscaling_config=scaling, ray_actor_options={"num_cpus": cpus}, health_check_period_s=2, health_check_timeout_s=10,
        graceful_shutdown_timeout_s=drain_s + 20,
    ).bind(command, address, drain_s)  # fmt: skip
    serve.run(Placer.bind(servers), name="placer", route_prefix="/")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--min", type=int, default=1, dest="fewest")
    parser.add_argument("--max", type=int, default=4, dest="most")
    parser.add_argument("--cpus", type=float, default=2, help="of each server (default %(default)s)")
    parser.add_argument("--target", type=float, default=0.6, help="load at which there should be more (default %(default)s)")
    parser.add_argument("--drain", type=float, default=300, dest="drain_s", help="seconds for calls at a server's end")
    parser.add_argument("--port", type=int, default=8000, help="of the placer (default %(default)s)")
    parser.add_argument("--command", type=json.loads, default=["bargein", "serve"], help="JSON; default %(default)s")
    told = parser.parse_args()
    ray.init(address="auto")
    serve.start(http_options={"host": "0.0.0.0", "port": told.port})
    deploy(told.command, fewest=told.fewest, most=told.most, cpus=told.cpus, target=told.target, drain_s=told.drain_s)
    print(f"placing calls at port {told.port}", flush=True)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
