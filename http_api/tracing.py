"""OpenTelemetry traces of calls: one trace a call, made of the very records that the inspector shows.

Spans: `session`; below it `turn`, from the caller's last sound to the reply's end; below that the turn's work: `stt`,
`eou`, `chat`, `tts`, `tool`, each with the inspector's span id as `bargein.span_id`. The milestones of the waterfall that
are moments are events of the turn. Made when a call is over, on a thread; exported over OTLP/HTTP. No content.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bargein.pipeline.inspect import Summary
from bargein.pipeline.turns import Turn, Work

log = logging.getLogger("bargein.tracing")

WAITING = 100  # calls
FLUSH_MS = 5000
FLUSH_TURNS = 100
MOMENTS = ("voice_end", "stop", "transcript", "scored", "commit", "ask", "first_token", "first_chunk", "first_frame")


class NoTracing(Exception):
    """OpenTelemetry is not installed; the message says what to do."""


class Tracer:
    """`endpoint`: an OTLP/HTTP receiver's base address. The SDK's own variables (OTEL_…) hold as well."""

    def __init__(self, endpoint: str, service: str, version: str) -> None:
        """Raises NoTracing."""
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as problem:
            raise NoTracing(f"otel.endpoint is set: pip install 'bargein[otel]' ({problem})") from None
        self._set_span = trace.set_span_in_context
        resource = Resource.create({"service.name": service, "service.version": version})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces")))
        self._tracer = self._provider.get_tracer("bargein")

        self._thread = ThreadPoolExecutor(1, "tracer")  # its own: a collector that hangs holds up nobody else
        self._waiting = 0

    def ended(self, summary: Summary) -> None:
        """A call is over. Returns at once; to be called on the event loop, as `close`."""
        if self._waiting >= WAITING:
            log.error("%s is not traced: %d calls wait for the collector", summary.session_id, WAITING)
            return
        self._waiting += 1
        self._thread.submit(self._call, summary)

    def _call(self, summary: Summary) -> None:
        try:
            self._spans(summary)
            self._provider.force_flush(FLUSH_MS)
        except Exception:  # a trace's fault must not end the tracing
            log.exception("%s is not traced", summary.session_id)
        finally:
            self._waiting -= 1

    def _spans(self, summary: Summary) -> None:
        wall_ms = summary.started * 1000 - summary.mono0_ms  # one offset for all, so that lengths stay what they are

        def ns(mono_ms: float) -> int:
            return round((mono_ms + wall_ms) * 1e6)

        end = summary.mono0_ms + 1000 * summary.seconds
        about = {"bargein.session_id": summary.session_id, "bargein.transport": summary.transport,
                 "bargein.answered_by": summary.answered_by, "bargein.end_reason": summary.end_reason}  # fmt: skip
        session = self._tracer.start_span("session", start_time=ns(summary.mono0_ms), attributes=about)
        inside = self._set_span(session)
        for number, turn in enumerate(summary.turns, 1):
            if number % FLUSH_TURNS == 0:  # the exporter's queue is bounded
                self._provider.force_flush(FLUSH_MS)
            start, over = _span_of(turn, end)
            span = self._tracer.start_span("turn", inside, start_time=ns(start), attributes=_told(turn, summary))
            for name in MOMENTS:
                if (at := getattr(turn, name)) is not None:
                    span.add_event(name, timestamp=ns(at))
            for work in turn.work:
                self._work(work, self._set_span(span), ns, over, summary)
            span.end(ns(over))
        for work in summary.loose:
            self._work(work, inside, ns, end, summary)
        session.end(ns(end))

    def _work(self, work: Work, inside: Any, ns: Any, latest: float, summary: Summary) -> None:
        about: dict[str, Any] = {"bargein.span_id": work.span_id, "bargein.session_id": summary.session_id}
        moments = {k: v for k, v in work.notes.items() if k.startswith("first_")}
        about |= {f"bargein.{k}": v for k, v in work.notes.items() if k not in moments and v is not None}
        span = self._tracer.start_span(work.kind, inside, start_time=ns(work.start), attributes=about)
        for name, at in moments.items():
            span.add_event(name, timestamp=ns(at))
        span.end(ns(work.end if work.end is not None else max(latest, work.start)))

    def close(self) -> None:
        """Export what waits. Blocks, a few seconds at most where the collector answers."""
        self._thread.shutdown(wait=self._waiting <= 1, cancel_futures=self._waiting > 1)
        self._provider.shutdown()


def _span_of(turn: Turn, end: float) -> tuple[float, float]:
    """When a turn's span begins and ends."""
    known = [t for t in (turn.voice_end, turn.stop, turn.ask, turn.start) if t is not None]
    start = turn.ask if turn.typed and turn.ask is not None else known[0]
    later = [getattr(turn, name) for name in MOMENTS if getattr(turn, name) is not None]
    return start, min(end, turn.done if turn.done is not None else max([start, *later]))


def _told(turn: Turn, summary: Summary) -> dict[str, Any]:
    about = {
        "bargein.session_id": summary.session_id, "bargein.turn_id": turn.id, "bargein.typed": turn.typed,
        "bargein.response_id": turn.response_id, "bargein.status": turn.status, "bargein.reason": turn.reason,
        "bargein.commit_why": turn.why, "bargein.eou_score": turn.score, "bargein.eou_delay_ms": turn.delay_ms,
        "bargein.voice_to_voice_ms": turn.voice_to_voice_ms, "bargein.cut_ms": turn.cut_ms,
    }  # fmt: skip
    return {k: v for k, v in about.items() if v not in (None, "")}
