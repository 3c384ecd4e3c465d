"""The log: lines of text, or of JSON for whatever gathers them. What is logged holds no content of calls below `debug`."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import msgspec

from .config import Log


class Json(logging.Formatter):
    """One object a line: time, level, logger, message, and the traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage(),
        }  # fmt: skip
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(told).decode()


def configure(config: Log) -> None:
    """Set the process's log up."""
    handler = logging.StreamHandler()
    handler.setFormatter(Json() if config.format == "json" else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=config.level.upper(), handlers=[handler])
    for name in ("aioice", "aiortc"):  # they tell every step of every connection
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))
