#!/usr/bin/env python3
"""Does a Dockerfile's steps without an image engine: in a plain root file system, made by debootstrap, entered by chroot.

    deploy/rootfs.py build /srv/bargein [--arg NAME=VALUE …] [--bind FROM[:TO] …] [--env NAME=VALUE …]    root; debootstrap
    deploy/rootfs.py run /srv/bargein [--bind FROM[:TO] …] [--env NAME=VALUE …] [-- ARGUMENTS]
    deploy/rootfs.py health /srv/bargein                                           the image's own HEALTHCHECK, once

It reads the instructions that `deploy/Dockerfile` uses, and refuses others. What an engine adds (layers, networks of its
own) it has not; processes see their own mounts and process ids. `--bind`: paths of this machine that are seen inside,
read-only, such as a package index while building, or the weights; not where the steps themselves write. `--env` while
building is for the steps alone, such as a proxy or a certificate bundle: the image does not keep it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
RELEASE = re.compile(r"debian:(\w+)(-slim)?$")
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
STATE = "etc/image.json"  # what the image's configuration would be


@dataclass
class Image:
    """What the instructions have said so far. `args` are for the steps, and are not kept."""

    env: dict[str, str] = field(default_factory=lambda: {"PATH": DEFAULT_PATH})
    args: dict[str, str] = field(default_factory=dict)
    user: str = "root"
    folder: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: str = ""


def instructions(text: str) -> list[tuple[str, str]]:
    """(keyword, rest) of every instruction; a line that ends in a backslash goes on."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ")
    return [(word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in whole.splitlines()) if word]


def enter(root: Path, image: Image, argv: list[str], binds: list[str]) -> list[str]:
    """The command that runs `argv` inside, as the image's user, with mounts and process ids of its own."""
    mounts = [f"mkdir -p {root}/proc {root}/dev", f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev"]
    for bind in binds:
        here, _, there = bind.partition(":")
        inside = root / (there or here).lstrip("/")
        make = f"mkdir -p {inside}" if Path(here).is_dir() else f"mkdir -p {inside.parent} && touch {inside}"
        mounts += [make, f"mount --bind {shlex.quote(here)} {inside}", f"mount -o remount,bind,ro {inside}"]
    env = [f"{k}={v}" for k, v in (image.args | image.env).items()]
    users = [line.split(":") for line in (root / "etc/passwd").read_text().splitlines()]
    home = next(user[5] for user in users if user[0] == image.user)
    inner = shlex.join(["env", "-i", f"HOME={home}", *env, "sh", "-c", f'cd {image.folder} && exec "$@"', "sh", *argv])
    user = [] if image.user == "root" else [f"--userspec={image.user}"]
    script = " && ".join([*mounts, f"exec {shlex.join(['chroot', *user, str(root)])} {inner}"])
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child=SIGTERM", "sh", "-ec", script]


def build(
    root: Path, context: Path, dockerfile: Path, args: dict[str, str], binds: list[str], env: dict[str, str] | None = None
) -> None:
    """Every instruction in turn. Raises CalledProcessError."""
    image = Image(args=dict(env or {}))
    for word, rest in instructions(dockerfile.read_text()):
        print(f"--- {word} {rest}", flush=True)
        match word:
            case "FROM":
                if (release := RELEASE.match(rest)) is None:
                    sys.exit(f"rootfs.py: FROM {rest}: only Debian's releases can be made here")
                if not (root / "etc/debian_version").exists():
                    subprocess.run(["debootstrap", "--variant=minbase", release[1], str(root)], check=True)
                    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
            case "ARG":
                name, _, default = rest.partition("=")
                image.args[name] = args.get(name, default)
            case "ENV":
                name, _, value = rest.partition("=")
                image.env[name] = value
            case "RUN":
                subprocess.run(enter(root, image, ["sh", "-c", rest], binds), check=True)
            case "COPY":
                *sources, target = rest.split()
                for source in sources:
                    _copy(context / source, root / target.lstrip("/"), into=target.endswith("/"))
            case "WORKDIR":
                image.folder = rest
                (root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "USER":
                image.user = rest
            case "ENTRYPOINT":
                image.entrypoint = json.loads(rest)
            case "CMD":
                image.command = json.loads(rest)
            case "HEALTHCHECK":
                image.health = rest.partition(" CMD ")[2]
            case "EXPOSE" | "STOPSIGNAL":
                pass
            case _:
                sys.exit(f"rootfs.py: {word} is not done here")
    (root / STATE).write_text(json.dumps(vars(image) | {"args": {}}, indent=1))


def _copy(source: Path, target: Path, *, into: bool) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target.mkdir(parents=True, exist_ok=True) if into else target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("build", "run", "health"))
    parser.add_argument("root", type=Path)
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--file", type=Path, default=HERE / "Dockerfile")
    parser.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--bind", action="append", default=[], metavar="FROM[:TO]")
    argv = sys.argv[1:]
    cut = argv.index("--") if "--" in argv else len(argv)
    told, arguments = parser.parse_args(argv[:cut]), argv[cut + 1 :]
    root = told.root.resolve()
    args, env = (dict(x.split("=", 1) for x in pairs) for pairs in (told.arg, told.env))
    if told.what == "build":
        build(root, HERE.parent, told.file, args, told.bind, env)
        return 0
    image = Image(**json.loads((root / STATE).read_text()))
    image.env |= env
    if told.what == "health":
        return subprocess.run(enter(root, image, ["sh", "-c", image.health], told.bind)).returncode
    command = enter(root, image, [*image.entrypoint, *(arguments or image.command)], told.bind)
    os.execvp(command[0], command)


if __name__ == "__main__":
    sys.exit(main())
