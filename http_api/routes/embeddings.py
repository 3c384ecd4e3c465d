"""`POST /v1/embeddings`: texts to vectors; `POST /v1/audio/embeddings`: voices to vectors."""

from __future__ import annotations

import base64
from contextlib import aclosing
from typing import Any

import numpy as np
import numpy.typing as npt
from aiohttp import web

from bargein.engine import protocol as p
from bargein.pipeline.oneshot import Use

from ..errors import bad
from ..metrics import METRICS
from ..services import SERVICES
from .fields import is_token_ids, read_json
from .names import resolve
from .streams import json_response
from .uploads import form, sound

F32 = npt.NDArray[np.float32]

WIDTH = 384
MAX_INPUTS = 2048
MAX_VOICE_S = 600


async def create(request: web.Request) -> web.Response:
    """Vectors of texts."""
    services = request.app[SERVICES]
    f = await read_json(request)
    model = f.needed_text("model")
    resolve(services, "embed", model)
    inputs = _inputs(f.need("input"))
    as_base64 = f.text("encoding_format", "float", choices=("float", "base64")) == "base64"
    width = f.integer("dimensions", 1, WIDTH, WIDTH) or WIDTH
    f.labels("user")
    f.finish()
    async with Use(services.engine, "embed") as use:
        vectors: p.Vectors = await use.one(p.Embed(inputs))
    rows = np.frombuffer(vectors.data, "<f4").reshape(vectors.rows, -1)
    tokens = sum(vectors.num_tokens)
    request.app[METRICS].used(tokens, 0)
    return json_response(
        {
            "object": "list", "model": model, "data": [_entry(i, cut(row, width), as_base64) for i, row in enumerate(rows)],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
    )  # fmt: skip


def _inputs(value: Any) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(value, str) or is_token_ids(value):
        value = [value]
    if not isinstance(value, list) or not value or not all(isinstance(x, str) or is_token_ids(x) for x in value):
        raise bad("input", "'input': must be a text, token ids, or an array of either", "invalid_type")
    if len(value) > MAX_INPUTS:
        raise bad("input", f"'input': at most {MAX_INPUTS} at once", "invalid_value")
    if any(isinstance(x, str) and not x for x in value):
        raise bad("input", "'input': must not be empty", "invalid_value")
    return tuple(x if isinstance(x, str) else tuple(x) for x in value)


def cut(row: F32, width: int) -> F32:
    """The first `width` dimensions, of unit length again."""
    head = row[:width]
    return head / np.float32(max(float(np.linalg.norm(head)), 1e-12))


def _entry(index: int, row: F32, as_base64: bool) -> dict[str, Any]:
    value: Any = base64.b64encode(row.astype("<f4").tobytes()).decode() if as_base64 else row.tolist()
    return {"object": "embedding", "index": index, "embedding": value}


async def voice(request: web.Request) -> web.Response:
    """The vector of the voice in a recording: multipart with `file`, `model` and `encoding_format`."""
    services = request.app[SERVICES]
    async with form(request) as f:
        model = f.text("model", "") or ""
        resolve(services, "voice", model)
        as_base64 = f.text("encoding_format", "float", choices=("float", "base64")) == "base64"
        f.finish()
        pieces, count = [], 0
        async with aclosing(sound(request, f.file)) as heard:
            async for piece in heard:
                pieces.append(piece)
                count += len(piece)
                if count > MAX_VOICE_S * 16000:
                    raise bad("file", f"'file': at most {MAX_VOICE_S} s for one voice", "invalid_value")
        audio = np.concatenate(pieces)
        async with Use(services.engine, "embed") as use:
            vectors: p.Vectors = await use.one(p.Voice(audio.tobytes(), ((0, len(audio)),)))
    row = np.frombuffer(vectors.data, "<f4")
    seconds = len(audio) / 16000
    usage = {"type": "duration", "seconds": round(seconds, 3)}
    return json_response({"object": "list", "model": model or services.engine.models.get("voice", ""),
                          "data": [_entry(0, row, as_base64)], "usage": usage})  # fmt: skip
