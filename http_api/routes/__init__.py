"""OpenAI's HTTP routes (and Anthropic's two), one module a family: parse and validate, run engine streams, format."""

from __future__ import annotations

from aiohttp import web

from ..metrics import metrics
from ..services import SERVICES
from ..siblings import SIBLINGS, among_siblings
from . import chat, completions, embeddings, messages, models, responses, speech, transcriptions


def add(app: web.Application) -> None:
    """Register every route."""
    app[responses.STORE] = responses.Store(app[SERVICES].config.http.stored_responses)
    r = app.router
    r.add_get("/metrics", metrics)
    r.add_get("/v1/models", models.list_models)
    r.add_get("/v1/models/{model:.+}", models.get_model)
    r.add_post("/v1/chat/completions", chat.create)
    r.add_post("/v1/completions", completions.create)
    r.add_post("/v1/responses", responses.create)
    r.add_get("/v1/responses/{response_id}", responses.get)
    r.add_delete("/v1/responses/{response_id}", responses.delete)
    r.add_get("/v1/responses/{response_id}/input_items", responses.input_items)
    if app.get(SIBLINGS) is not None:
        r.add_get("/workers/responses/{response_id}", among_siblings(responses.whole))
    r.add_post("/v1/messages", messages.create)
    r.add_post("/v1/messages/count_tokens", messages.count_tokens)
    r.add_post("/v1/audio/speech", speech.create)
    r.add_post("/v1/audio/transcriptions", transcriptions.transcribe)
    r.add_post("/v1/audio/translations", transcriptions.translate)
    r.add_post("/v1/audio/alignments", transcriptions.align)
    r.add_post("/v1/audio/diarization", transcriptions.diarize)
    r.add_post("/v1/audio/embeddings", embeddings.voice)
    r.add_post("/v1/embeddings", embeddings.create)

    async def prepare(app: web.Application) -> None:
        await app[SERVICES].media.prepare()

    app.on_startup.append(prepare)
