"""Tries `ray_serve.py` on one machine: two replicas, eight short calls, one replica killed meanwhile. Prints what happened.

    python deploy/ray_try.py PYTHON WAV      PYTHON: of an environment with bargein; this one has ray[serve]

Calls come two at a time, one on each server. During the third pair the replica of one and its server are killed: its
call may break off, the other must not notice; the calls after that must all find a server.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from typing import Any

import ray
from ray import serve
from ray_serve import deploy

PLACER = "http://127.0.0.1:8611"


def get(path: str) -> Any:
    with urllib.request.urlopen(PLACER + path, timeout=10) as reply:
        return json.loads(reply.read())


def servers() -> dict[str, Any]:
    """By address: the process of each replica and of its server."""
    handle = serve.get_deployment_handle("Server", "placer")
    found: dict[str, Any] = {}
    until = time.monotonic() + 5
    while time.monotonic() < until and len(found) < 2:
        told = handle.about.remote().result(timeout_s=10)
        found[told["url"]] = told
    return found


def place(python: str, wav: str, number: int) -> tuple[int, str, subprocess.Popen[str]]:
    url = get("/v1/realtime/placement")["url"]
    command = [python, "-m", "bargein.http_api.cli", "call", wav, "--url", url, "--out", f"/tmp/ray-{number}.wav"]
    return number, url, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def main(python: str, wav: str) -> int:
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": 8611})
    command = [python, "-m", "bargein.http_api.cli", "serve", "--set", "server.max_sessions=4"]
    began = time.monotonic()
    deploy(command, fewest=2, most=2, cpus=1, target=0.6, drain_s=5, address="127.0.0.1")
    print(f"two servers after {time.monotonic() - began:.0f} s: {get('/health')['servers']}", flush=True)
    good, killed = 0, ""
    for pair in range(4):
        while len(get("/health")["servers"]) < (1 if killed else 2):
            time.sleep(0.2)
        calls = [place(python, wav, 2 * pair + n) for n in range(2)]
        if pair == 2:
            time.sleep(2.5)
            killed = calls[0][1].replace("ws:", "http:").removesuffix("/v1/realtime")
            victim = servers()[killed]
            for pid in (victim["pid"], victim["replica_pid"]):
                os.kill(pid, signal.SIGKILL)
            print(f"killed the replica and the server at {killed}", flush=True)
        for number, url, process in calls:
            said = process.communicate(timeout=90)[0].strip().splitlines()
            on_killed = bool(killed) and pair == 2 and killed.removeprefix("http") in url
            ok = process.returncode == 0
            good += ok and not on_killed
            result = "killed under it" if on_killed else "whole" if ok else "FAILED"
            print(f"call {number} on {url}: {result}: {said[-3:]}", flush=True)
        time.sleep(1)
    print(f"{good} of 7 calls on servers that lived were whole")
    began = time.monotonic()
    while len(get("/health")["servers"]) < 2 and time.monotonic() - began < 120:
        time.sleep(1)
    print(f"servers at the end: {get('/health')['servers']}")
    serve.shutdown()
    ray.shutdown()
    return 0 if good == 7 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
