"""The log: lines of text, or of JSON for whatever gathers them. What is logged holds no content of calls below `debug`."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import msgspec

from .config import Log


class Json(logging.Formatter):
    """One object a line: time, level, logger, message, and the traceback where there is one; of several workers, which."""

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._worker = {} if worker is None else {"worker": worker}

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage(),
        } | self._worker  # fmt: skip
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(told).decode()


def configure(config: Log, worker: int | None = None) -> None:
    """Set the process's log up. `worker`: its number, of several, which its lines name."""
    handler = logging.StreamHandler()
    who = "" if worker is None else f"worker {worker} "
    text = logging.Formatter(f"%(asctime)s {who}%(levelname)s %(message)s")
    handler.setFormatter(Json(worker) if config.format == "json" else text)
    logging.basicConfig(level=config.level.upper(), handlers=[handler])
    for name in ("aioice", "aiortc"):  # they tell every step of every connection
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))
