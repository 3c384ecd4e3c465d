"""What is counted, for Prometheus: requests by route and status, work by kind, sessions. Never content."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .services import Services

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """One registry per application."""

    def __init__(self, services: Services) -> None:
        self.registry = registry = CollectorRegistry()
        labels = ("route", "method", "status")
        self.requests = Counter("bargein_http_requests_total", "HTTP requests", labels, registry=registry)
        self.seconds = Histogram(
            "bargein_http_request_seconds", "From the request's head to the response's end", ("route",),
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self.in_flight = Gauge("bargein_http_requests_in_flight", "HTTP requests now", ("route",), registry=registry)
        self.tokens = Counter("bargein_tokens_total", "Language-model tokens", ("kind",), registry=registry)
        self.audio = Counter("bargein_audio_seconds_total", "Audio heard and spoken", ("kind",), registry=registry)
        sessions = Gauge("bargein_realtime_sessions", "Realtime sessions now", registry=registry)
        sessions.set_function(lambda: float(services.num_sessions))
        ready = Gauge("bargein_engine_ready", "1 while the engine is connected and warm", registry=registry)
        ready.set_function(lambda: float(services.engine.ready))
        streams = Gauge("bargein_engine_streams", "Streams open on the engine", registry=registry)
        streams.set_function(lambda: float(services.engine.num_streams()))

    @contextmanager
    def running(self, route: str) -> Iterator[None]:
        gauge = self.in_flight.labels(route)
        gauge.inc()
        try:
            yield
        finally:
            gauge.dec()

    def count(self, route: str, method: str, status: int, seconds: float) -> None:
        self.requests.labels(route, method, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def used(self, given: int, made: int) -> None:
        """Tokens of a generation."""
        self.tokens.labels("input").inc(given)
        self.tokens.labels("output").inc(made)


METRICS = web.AppKey("metrics", Metrics)


async def metrics(request: web.Request) -> web.Response:
    """`GET /metrics`."""
    body = generate_latest(request.app[METRICS].registry)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
