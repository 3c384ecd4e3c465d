"""What goes wrong with a request, as a status and OpenAI's error envelope, or Anthropic's on its own two routes."""

from __future__ import annotations

from typing import Any

from aiohttp import web

KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
ANTHROPIC_KINDS = {400: "invalid_request_error", 413: "request_too_large", 503: "overloaded_error", **KINDS}


class ApiError(Exception):
    """Ends a request with a status. `param`: the field to blame; `code`: a word for programs."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None, **headers: str) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = {k.replace("_", "-"): v for k, v in headers.items()}

    def body(self) -> dict[str, Any]:
        """OpenAI's envelope: all four keys, always."""
        kind = "server_error" if self.status >= 500 else KINDS.get(self.status, "invalid_request_error")
        if self.status == 404:
            kind = "invalid_request_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self, anthropic: bool = False) -> web.Response:
        """The whole answer."""
        body = self.body()
        if anthropic:
            kind = ANTHROPIC_KINDS.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")
            body = {"type": "error", "error": {"type": kind, "message": self.message}}
        return web.json_response(body, status=self.status, headers=self.headers)


def bad(param: str | None, message: str, code: str | None = None) -> ApiError:
    """A request that cannot be honoured, by the name of the field to blame."""
    return ApiError(400, message, param, code)
