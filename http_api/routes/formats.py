"""A transcript as it is gathered, and the forms it is given out in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bargein.pipeline.diarization import SpeakerTurn
from bargein.pipeline.recordings import Part

SEEK_PER_S = 100  # Whisper's frames


@dataclass(frozen=True, slots=True)
class Line:
    """A word or a subtitle, in seconds of the recording."""

    text: str
    start: float
    end: float


@dataclass(slots=True)
class Output:
    """Everything said so far."""

    texts: list[str] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    words: list[Line] = field(default_factory=list)
    segments: list[dict[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    def add(self, part: Part) -> None:
        """The next window of the recording."""
        heard, at = part.heard, part.start_s
        self.texts.append(heard.text)
        for s in heard.segments:
            line = Line(s.text, round(at + s.start_s, 3), round(at + s.end_s, 3))
            self.lines.append(line)
            self.segments.append(
                {
                    "id": len(self.segments), "seek": round(SEEK_PER_S * at), "start": line.start, "end": line.end,
                    "text": f" {s.text}", "tokens": list(s.tokens), "temperature": heard.temperature,
                    "avg_logprob": heard.avg_logprob, "compression_ratio": heard.compression_ratio,
                    "no_speech_prob": heard.no_speech_prob,
                }
            )  # fmt: skip
        self.words += [Line(w.text, round(at + w.start_s, 3), round(at + w.end_s, 3)) for w in heard.words]

    def diarized(self, turns: list[SpeakerTurn], seconds: float) -> dict[str, Any]:
        """`diarized_json`: the words by who said them."""
        segments: list[dict[str, Any]] = []
        for word in self.words:
            speaker = _speaker_of(word, turns)
            if segments and segments[-1]["speaker"] == speaker and word.start - segments[-1]["end"] < 1.5:
                segments[-1]["end"] = word.end
                segments[-1]["text"] += f" {word.text}"
            else:
                segments.append(
                    {"type": "transcript.text.segment", "id": f"seg_{len(segments):03d}", "start": word.start,
                     "end": word.end, "text": word.text, "speaker": speaker}
                )  # fmt: skip
        return {
            "task": "transcribe", "duration": round(seconds, 3), "text": self.text, "segments": segments,
            "usage": {"type": "duration", "seconds": round(seconds, 2)},
        }  # fmt: skip


def _speaker_of(word: Line, turns: list[SpeakerTurn]) -> str:
    """Whose turn covers most of the word's beginning (its end may hold a pause), or is nearest."""
    if not turns:
        return "A"

    def distance(t: SpeakerTurn) -> float:
        overlap = min(word.end, word.start + 0.4, t.end_s) - max(word.start, t.start_s)
        return -overlap

    return min(turns, key=distance).speaker


def _clock(seconds: float, mark: str) -> str:
    ms = round(1000 * seconds)
    return f"{ms // 3_600_000:02d}:{ms // 60_000 % 60:02d}:{ms // 1000 % 60:02d}{mark}{ms % 1000:03d}"


def srt(lines: list[Line]) -> str:
    """SubRip subtitles."""
    return "\n".join(f"{i}\n{_clock(x.start, ',')} --> {_clock(x.end, ',')}\n{x.text}\n" for i, x in enumerate(lines, 1))


def vtt(lines: list[Line]) -> str:
    """WebVTT subtitles."""
    cues = "\n".join(f"{_clock(x.start, '.')} --> {_clock(x.end, '.')}\n{_escaped(x.text)}\n" for x in lines)
    return f"WEBVTT\n\n{cues}"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("-->", "--&gt;")
