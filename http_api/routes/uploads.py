"""Multipart forms: fields, and one file that goes to disk as it comes, so that its size costs no memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from bargein.pipeline.media import DecoderGone, Media, NotAudio

from ..errors import ApiError, bad
from ..services import SERVICES
from .fields import Fields

F32 = npt.NDArray[np.float32]

MAX_FIELD = 256 * 1024
MAX_PARTS = 64
LISTS = ("timestamp_granularities", "include", "keywords", "languages", "known_speaker_names", "known_speaker_references")


class Form(Fields):
    """A form's fields: texts, read as what they stand for. `file`: where the upload lies."""

    def __init__(self, data: dict[str, Any], file: Path) -> None:
        super().__init__(data)
        self.file = file

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float | None:
        """See Fields; "0.5" is a number in a form."""
        self._convert(name, float, "a number")
        return super().number(name, low, high, default)

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int | None:
        """See Fields."""
        self._convert(name, int, "an integer")
        return super().integer(name, low, high, default)

    def flag(self, name: str, default: bool = False) -> bool:
        """See Fields; "true" and "false"."""
        value = self._data.get(name)
        if isinstance(value, str):
            if value.lower() not in ("true", "false", "1", "0"):
                raise self.refuse(name, "must be true or false", "invalid_type")
            self._data[name] = value.lower() in ("true", "1")
        return super().flag(name, default)

    def _convert(self, name: str, kind: Any, said: str) -> None:
        value = self._data.get(name)
        if isinstance(value, str):
            try:
                self._data[name] = kind(value)
            except ValueError:
                raise self.refuse(name, f"must be {said}", "invalid_type") from None


@asynccontextmanager
async def form(request: web.Request) -> AsyncGenerator[Form, None]:
    """The request's form, its `file` on disk while the block runs. ApiError for anything else."""
    if not request.content_type.startswith("multipart/"):
        raise ApiError(400, "the body must be multipart/form-data with a 'file'", "file", "missing_required_parameter")
    limit = request.app[SERVICES].config.http.max_upload_mb * 2**20
    if request.content_length is not None and request.content_length > limit + 2**20:
        raise ApiError(413, f"the upload is over {limit >> 20} MB", "file", "request_too_large", x_should_retry="false")
    handle, name = tempfile.mkstemp(prefix="bargein-upload-")
    path = Path(name)
    try:
        with os.fdopen(handle, "wb") as out:
            data, seen = await _read(request, out, limit)
        if not seen:
            raise bad("file", "missing required parameter: 'file'", "missing_required_parameter")
        yield Form(data, path)
    finally:
        path.unlink(missing_ok=True)


async def _read(request: web.Request, out: Any, limit: int) -> tuple[dict[str, Any], bool]:
    data: dict[str, Any] = {}
    seen, size = False, 0
    try:
        reader = await request.multipart()
        for _ in range(MAX_PARTS):
            part = await reader.next()
            if part is None:
                return data, seen
            if not isinstance(part, BodyPartReader) or part.name is None:
                raise bad(None, "the form holds a part without a name", "invalid_form")
            if part.name == "file":
                seen = True
                while chunk := await part.read_chunk(2**16):
                    size += len(chunk)
                    if size > limit:
                        raise ApiError(
                            413, f"the upload is over {limit >> 20} MB", "file", "request_too_large", x_should_retry="false"
                        )
                    out.write(chunk)
                continue
            value = bytearray()
            while chunk := await part.read_chunk(2**14):
                value += chunk
                if len(value) > MAX_FIELD:
                    raise bad(part.name, f"'{part.name}': is too long", "string_above_max_length")
            _put(data, part.name, value.decode("utf-8", "replace"))
    except (ValueError, AssertionError, RuntimeError, HttpProcessingError) as problem:
        raise bad(None, f"the form cannot be read: {str(problem)[:200]}", "invalid_form") from None
    raise bad(None, f"the form has more than {MAX_PARTS} parts", "invalid_form")


def _put(data: dict[str, Any], name: str, text: str) -> None:
    """`name[]` and the known lists gather; other names are given once."""
    bare = name.removesuffix("[]")
    if bare in LISTS:
        data.setdefault(bare, []).append(text)
    elif bare in data:
        raise bad(bare, f"'{bare}': is given twice", "invalid_form")
    else:
        data[bare] = text


async def sound(request: web.Request, file: Path) -> AsyncGenerator[F32, None]:
    """The upload as 16 kHz sound. ApiError where it is none."""
    services = request.app[SERVICES]
    async with aclosing(decoded(services.media, file, services.config.http.max_audio_s)) as pieces:
        async for piece in pieces:
            yield piece


async def decoded(media: Media, file: Path, max_s: float, param: str = "file") -> AsyncGenerator[F32, None]:
    """A file as 16 kHz sound. ApiError 400 where it cannot be decoded, 503 where there is no time to."""
    try:
        async with aclosing(media.decode(file, max_s)) as pieces:
            async for piece in pieces:
                yield piece
    except NotAudio as problem:
        raise bad(param, f"the audio {problem}", "invalid_audio") from None
    except DecoderGone as problem:
        raise ApiError(503, str(problem), None, "server_busy", **{"Retry-After": "5"}) from None
