"""The OpenAPI document of the HTTP routes, and a plain page that shows it. Tables in, document out."""

from __future__ import annotations

import html
import json
from functools import cache
from typing import Any

from aiohttp import web

from bargein.pipeline.encoding import FORMATS as AUDIO

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
MODEL: Schema = {"anyOf": [{"type": "string", "enum": ["default"]}, {"type": "string"}]}
FILE: Schema = {"type": "string", "format": "binary"}


def number(low: float, high: float) -> Schema:
    return {"type": "number", "minimum": low, "maximum": high}


def whole(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def one_of(*names: str) -> Schema:
    return {"type": "string", "enum": list(names)}


def many(items: Schema) -> Schema:
    return {"type": "array", "items": items}


ANY_TEXT: Schema = {"anyOf": [TEXT, many(TEXT), many({"type": "integer"}), many(many({"type": "integer"}))]}
STOP: Schema = {"anyOf": [TEXT, many(TEXT)]}
CONTENT: Schema = {"anyOf": [TEXT, many(OBJECT)]}
MESSAGES: Schema = {
    "type": "array", "minItems": 1,
    "items": {"type": "object", "required": ["role"], "properties": {"role": TEXT, "content": CONTENT}},
}  # fmt: skip
SAMPLING: Schema = {
    "temperature": number(0, 2), "top_p": number(0, 1), "presence_penalty": number(-2, 2),
    "frequency_penalty": number(-2, 2), "seed": {"type": "integer"}, "logit_bias": OBJECT, "stop": STOP,
    "top_k": whole(-1, 10**6), "min_p": number(0, 1), "repetition_penalty": number(0.1, 5), "structured_outputs": OBJECT,
    "stream": FLAG, "stream_options": OBJECT, "user": TEXT,
}  # fmt: skip
VOICE: Schema = {"anyOf": [TEXT, OBJECT]}
HEARING: Schema = {"file": FILE, "model": MODEL, "prompt": TEXT, "temperature": number(0, 1)}
HEARD = one_of("json", "text", "srt", "verbose_json", "vtt", "diarized_json")
JSON, FORM, SSE = "application/json", "multipart/form-data", "text/event-stream"

# (path, method): (summary, body's content type, its fields, which are needed, content types of a success)
ROUTES: dict[tuple[str, str], tuple[str, str | None, Schema, tuple[str, ...], tuple[str, ...]]] = {
    ("/v1/models", "get"): ("The models that run", None, {}, (), (JSON,)),
    ("/v1/models/{model}", "get"): ("One of them", None, {}, (), (JSON,)),
    ("/v1/chat/completions", "post"): ("Answer a conversation", JSON, SAMPLING | {
        "model": MODEL, "messages": MESSAGES, "n": whole(1, 8), "max_completion_tokens": whole(1, 10**6),
        "max_tokens": whole(1, 10**6), "logprobs": FLAG, "top_logprobs": whole(0, 20), "tools": many(OBJECT),
        "tool_choice": {"anyOf": [TEXT, OBJECT]}, "parallel_tool_calls": FLAG, "response_format": OBJECT,
        "modalities": many(TEXT), "audio": OBJECT,
    }, ("model", "messages"), (JSON, SSE)),
    ("/v1/completions", "post"): ("Continue a text", JSON, SAMPLING | {
        "model": MODEL, "prompt": ANY_TEXT, "n": whole(1, 8), "max_tokens": whole(1, 10**6), "logprobs": whole(0, 5),
        "echo": FLAG,
    }, ("model", "prompt"), (JSON, SSE)),
    ("/v1/responses", "post"): ("Answer, and keep the answer", JSON, {
        "model": MODEL, "input": {"anyOf": [TEXT, many(OBJECT)]}, "instructions": TEXT, "previous_response_id": TEXT,
        "max_output_tokens": whole(1, 10**6), "temperature": number(0, 2), "top_p": number(0, 1), "tools": many(OBJECT),
        "tool_choice": {"anyOf": [TEXT, OBJECT]}, "parallel_tool_calls": FLAG, "text": OBJECT, "store": FLAG,
        "stream": FLAG, "metadata": OBJECT,
    }, ("model", "input"), (JSON, SSE)),
    ("/v1/responses/{response_id}", "get"): ("A kept response", None, {}, (), (JSON,)),
    ("/v1/responses/{response_id}", "delete"): ("Forget a response", None, {}, (), (JSON,)),
    ("/v1/responses/{response_id}/input_items", "get"): ("What a response was asked", None, {}, (), (JSON,)),
    ("/v1/messages", "post"): ("Answer a conversation, in Anthropic's form", JSON, {
        "model": MODEL, "messages": MESSAGES, "max_tokens": whole(1, 10**6), "system": CONTENT, "temperature": number(0, 1),
        "top_p": number(0, 1), "top_k": whole(0, 10**6), "stop_sequences": many(TEXT), "tools": many(OBJECT),
        "tool_choice": OBJECT, "stream": FLAG, "output_config": OBJECT,
    }, ("model", "messages", "max_tokens"), (JSON, SSE)),
    ("/v1/messages/count_tokens", "post"): ("Count the tokens of a conversation", JSON, {
        "model": MODEL, "messages": MESSAGES, "system": CONTENT, "tools": many(OBJECT),
    }, ("model", "messages"), (JSON,)),
    ("/v1/audio/speech", "post"): ("Speak a text", JSON, {
        "model": MODEL, "input": {"type": "string", "minLength": 1, "maxLength": 4096}, "voice": VOICE,
        "response_format": one_of(*AUDIO), "speed": number(0.25, 4), "stream_format": one_of("audio", "sse"),
        "instructions": TEXT,
    }, ("model", "input", "voice"), ("audio/mpeg", "audio/ogg", "audio/aac", "audio/flac", "audio/wav", "audio/pcm", SSE)),
    ("/v1/audio/transcriptions", "post"): ("What a recording says", FORM, HEARING | {
        "language": TEXT, "response_format": HEARD, "timestamp_granularities[]": many(one_of("word", "segment")),
        "stream": FLAG, "num_speakers": whole(1, 20), "keywords[]": many(TEXT), "languages[]": many(TEXT),
    }, ("file", "model"), (JSON, "text/plain", "text/vtt", SSE)),
    ("/v1/audio/translations", "post"): ("What a recording says, in English", FORM, HEARING | {
        "response_format": one_of("json", "text", "srt", "verbose_json", "vtt"),
    }, ("file", "model"), (JSON, "text/plain", "text/vtt")),
    ("/v1/audio/alignments", "post"): ("When each word of a known text is said", FORM, {
        "file": FILE, "text": TEXT, "model": MODEL, "language": TEXT,
    }, ("file", "text"), (JSON,)),
    ("/v1/audio/diarization", "post"): ("Who speaks when", FORM, {
        "file": FILE, "model": MODEL, "num_speakers": whole(1, 20),
    }, ("file",), (JSON,)),
    ("/v1/audio/embeddings", "post"): ("The vector of a voice", FORM, {
        "file": FILE, "model": MODEL, "encoding_format": one_of("float", "base64"),
    }, ("file",), (JSON,)),
    ("/v1/embeddings", "post"): ("Vectors of texts", JSON, {
        "model": MODEL, "input": ANY_TEXT, "encoding_format": one_of("float", "base64"), "dimensions": whole(1, 384),
        "user": TEXT,
    }, ("model", "input"), (JSON,)),
    ("/health", "get"): ("The process is alive", None, {}, (), (JSON,)),
    ("/health/ready", "get"): ("The engine is warm", None, {}, (), (JSON,)),
    ("/version", "get"): ("The version", None, {}, (), (JSON,)),
    ("/metrics", "get"): ("Figures for Prometheus", None, {}, (), ("text/plain",)),
}  # fmt: skip

ERRORS = {
    "400": "The request cannot be honoured; `param` names the field", "401": "The API key is missing or wrong",
    "403": "This origin is not allowed", "404": "There is no such model or response", "408": "Not done in time",
    "413": "The body or the upload is too large", "429": "Over the key's limits", "503": "Starting, shutting down, or too busy",
}  # fmt: skip
MAYBE: Schema = {"type": ["string", "null"]}
ERROR: Schema = {
    "type": "object", "required": ["error"],
    "properties": {"error": {
        "type": "object", "required": ["message", "type", "param", "code"],
        "properties": {"message": TEXT, "type": TEXT, "param": MAYBE, "code": MAYBE},
    }},
}  # fmt: skip


def _operation(path: str, method: str) -> Schema:
    summary, kind, fields, needed, made = ROUTES[path, method]
    name = f"{method}_{path.strip('/').replace('/', '_').replace('{', '').replace('}', '').replace('v1_', '')}"
    schemas: dict[str, Schema] = {JSON: OBJECT}
    out: Schema = {
        "operationId": name, "summary": summary,
        "responses": {"200": {"description": "Done", "content": {k: {"schema": schemas.get(k, TEXT)} for k in made}}},
    }  # fmt: skip
    if path.startswith("/v1/") or path == "/metrics":
        shape = {"type": "object"} if path.startswith("/v1/messages") else {"$ref": "#/components/schemas/Error"}
        for status, what in ERRORS.items():
            out["responses"][status] = {"description": what, "content": {JSON: {"schema": shape}}}
        out["security"] = [{"bearer": []}, {"key": []}, {}]
    elif path == "/health/ready":
        out["responses"]["503"] = {"description": "Starting or shutting down", "content": {JSON: {"schema": OBJECT}}}
    if "{" in path:
        parameter = path[path.index("{") + 1 : path.index("}")]
        out["parameters"] = [{"name": parameter, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}]
    if kind is not None:
        schema = {"type": "object", "required": list(needed), "properties": fields}
        out["requestBody"] = {"required": True, "content": {kind: {"schema": schema}}}
    return out


@cache
def document(version: str) -> Schema:
    """The OpenAPI 3.1 document."""
    paths: Schema = {}
    for path, method in ROUTES:
        paths.setdefault(path, {})[method] = _operation(path, method)
    return {
        "openapi": "3.1.0",
        "info": {"title": "bargein", "version": version, "description": "Realtime sessions are described in realtime/SPEC.md."},
        "paths": paths,
        "components": {
            "schemas": {"Error": ERROR},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def show(version: str) -> Any:
    """Handlers of `/openapi.json` and `/docs`."""

    async def as_json(request: web.Request) -> web.Response:
        return web.json_response(document(version))

    async def as_page(request: web.Request) -> web.Response:
        policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
        return web.Response(text=page(version), content_type="text/html", headers={"Content-Security-Policy": policy})

    return as_json, as_page


@cache
def page(version: str) -> str:
    """The document as one plain page, without scripts."""
    rows = []
    for (path, method), (summary, kind, fields, needed, made) in ROUTES.items():
        items = "".join(
            f"<tr><td><code>{html.escape(name)}</code>{' *' if name in needed else ''}</td>"
            f"<td><code>{html.escape(_said(schema))}</code></td></tr>"
            for name, schema in fields.items()
        )
        rows.append(
            f"<section><h2><b>{method.upper()}</b> <code>{html.escape(path)}</code></h2><p>{html.escape(summary)}. "
            f"{'Takes ' + kind + '; gives ' if kind else 'Gives '}{', '.join(made)}.</p>"
            + (f"<table>{items}</table>" if items else "")
            + "</section>"
        )
    style = (
        "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:#fff}"
        "h2{font-size:1.05rem;border-top:1px solid #ccc;padding-top:1rem}table{border-collapse:collapse}"
        "td{padding:.1rem 1.5rem .1rem 0;vertical-align:top}"
        "@media(prefers-color-scheme:dark){body{color:#eee;background:#161616}h2{border-color:#444}}"
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>bargein HTTP API</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{style}</style></head><body>'
        f"<h1>bargein HTTP API</h1><p>Version {html.escape(version)}; the same as <a href='/openapi.json'>OpenAPI</a>. "
        f"* marks what must be given. Keys go in <code>Authorization: Bearer</code> or <code>x-api-key</code>.</p>"
        f"{''.join(rows)}</body></html>"
    )


def _said(schema: Schema) -> str:
    """A schema in a few words."""
    if "enum" in schema:
        return " | ".join(schema["enum"])
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(_said(x) for x in schema["anyOf"]))
    if schema.get("type") == "array":
        return f"[{_said(schema['items'])}]"
    if "minimum" in schema:
        return f"{schema['type']} {schema['minimum']:g} to {schema['maximum']:g}"
    return str(json.dumps(schema["format"]).strip('"') if "format" in schema else schema["type"])
