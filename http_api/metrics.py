"""What is counted, for Prometheus: requests by route and status, work by kind, sessions. Never content."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from aiohttp import web
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)  # fmt: skip
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from bargein.engine.fleet import Fleet
from bargein.engine.stats import VAD_BOUNDS_MS

from .doors import is_sibling
from .services import Services
from .siblings import SIBLINGS

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class EngineLoad(Collector):
    """What the engine last told of its work; nothing before it has."""

    def __init__(self, engine: Fleet) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        load = self._engine.load
        if load is None:
            return
        for name, what, field in (
            ("answered", "Live requests that have had their first answer", "answered"),
            ("late", "Live requests whose first answer came later than a caller would notice", "late"),
            ("device_seconds", "Time of the device", "seconds"),
            ("steps", "Steps of a lane", "steps"),
            ("job_steps", "Jobs served by those steps", "job_steps"),
        ):
            counter = CounterMetricFamily(f"bargein_engine_{name}", what, labels=["lane"])
            for lane, counts in load.lanes.items():
                counter.add_metric([lane], getattr(counts, field))
            yield counter
        yield CounterMetricFamily("bargein_engine_cpu_seconds", "Processor time of the engine", load.cpu_s)
        yield GaugeMetricFamily("bargein_engine_resident_bytes", "Memory of the engine", load.resident_bytes)
        yield GaugeMetricFamily("bargein_engine_jobs", "Jobs in hand", load.jobs)
        total, buckets = 0, []
        for bound, count in zip((*VAD_BOUNDS_MS, None), load.vad_ms, strict=True):
            total += count
            buckets.append(("+Inf" if bound is None else str(bound / 1000), total))
        waits = HistogramMetricFamily("bargein_engine_vad_seconds", "From a voice window's last sample to its answer")
        waits.add_metric([], buckets, None)
        yield waits


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
        ProcessCollector(registry=registry)
        # Of several workers each has its own of the above, told with its number; what follows is of the server.
        self.common = common = registry if services.seat is None else CollectorRegistry()
        sessions = Gauge("bargein_realtime_sessions", "Realtime sessions now", registry=common)
        sessions.set_function(lambda: float(services.all_sessions))
        most = Gauge("bargein_realtime_sessions_max", "Realtime sessions that are taken at most", registry=common)
        most.set(services.config.server.max_sessions)
        ready = Gauge("bargein_engine_ready", "1 while the engine is connected and warm", registry=common)
        ready.set_function(lambda: float(services.engine.ready))
        serving = Gauge("bargein_engines_serving", "Engines that are connected and warm", registry=common)
        serving.set_function(lambda: float(len(services.engine.serving)))
        common.register(EngineLoad(services.engine))
        streams = Gauge("bargein_engine_streams", "Streams open on the engine", registry=common)
        streams.set_function(lambda: float(services.all_streams))

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


class Together(Collector):
    """What every worker told of itself, each number with the worker's."""

    def __init__(self, texts: Mapping[int, bytes]) -> None:
        self._texts = texts

    def collect(self) -> Iterator[Metric]:
        found: dict[str, Metric] = {}
        for number, text in sorted(self._texts.items()):
            for family in text_string_to_metric_families(text.decode()):
                whole = found.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    labels = {**sample.labels, "worker": str(number + 1)}
                    whole.add_sample(sample.name, labels, sample.value)
        yield from found.values()


METRICS = web.AppKey("metrics", Metrics)


async def metrics(request: web.Request) -> web.Response:
    """`GET /metrics`."""
    own = request.app[METRICS]
    body = generate_latest(own.registry)
    siblings = request.app.get(SIBLINGS)
    if siblings is not None and not is_sibling(request):
        texts = {siblings.seat.number: body} | await siblings.gather(request)
        body = generate_latest(Together(texts)) + generate_latest(own.common)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
