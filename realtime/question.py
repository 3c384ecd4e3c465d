"""Has the user finished? The question that a speech stop opens, and what becomes of its answers (SPEC section 6).

A question has one or two heads: the sound (a classifier of audio) and the words (a language model, or the rules of
`eou.text_score`). It is closed once every head has answered or patience is over; then it is a delay.
"""

from __future__ import annotations

from dataclasses import replace

from .conversation import ChatMessage
from .draft import Draft
from .effects import AskEou, AskEouText, PrepareEouText
from .eou import commit_delay_ms, fuse, text_score
from .settings import Eou
from .state import Question, Stopped

UNSURE_WAIT_MS = 1000

_SOUND = ("audio", "fusion")
_WORDS = ("heuristic", "text", "fusion", "integrated")


def asked_by_sound(eou: Eou) -> bool:
    """Whether this kind listens to the sound, so that the classifier may be asked ahead of the stop."""
    return eou.kind in _SOUND


def ask(d: Draft, vad: Stopped, end_ms: int, last_voiced_ms: int) -> None:
    """Open the question at a speech stop; the words' head waits for the stop transcript."""
    eou = d.s.settings.eou
    number = d.token()
    waiting = frozenset(head for head, kinds in (("audio", _SOUND), ("words", _WORDS)) if eou.kind in kinds)
    d.set(vad=replace(vad, ask=number, question=Question(waiting)))
    if "audio" in waiting:
        d.do(AskEou(vad.item_id, number, end_ms, last_voiced_ms, eou.audio_window_ms))


def words_came(d: Draft, vad: Stopped) -> float | None:
    """The stop transcript is there: the words' head can answer. -> when to commit, if that closes the question."""
    if vad.ask is None or vad.transcript is None:
        return None
    eou = d.s.settings.eou
    d.arm("eou_timeout", d.at + eou.inference_timeout_ms)
    if "words" not in vad.question.waiting:
        return None
    text = vad.transcript.text.strip()
    if eou.kind == "heuristic" or not text:
        return answer(d, vad, "words", text_score(text))
    d.do(AskEouText(vad.item_id, vad.ask, text, _history(d), eou.max_context_tokens, eou.kind == "integrated"))
    return None


def prepare(d: Draft) -> None:
    """The user begins to speak: what the words' model needs of the conversation is known."""
    eou = d.s.settings.eou
    if eou.kind in ("text", "fusion", "integrated"):
        d.do(PrepareEouText(_history(d), eou.max_context_tokens))


def _history(d: Draft) -> tuple[ChatMessage, ...]:
    turns = d.s.settings.eou.context_turns
    spoken = [m for m in d.s.conversation.chat_messages() if m.role in ("user", "assistant") and m.content]
    return tuple(spoken[-turns:]) if turns else ()


def answer(d: Draft, vad: Stopped, head: str, p: float | None) -> float | None:
    """One head's score (None: it failed). -> when to commit, if that closes the question."""
    if head not in vad.question.waiting:
        return None
    if p is not None and not 0.0 <= p <= 1.0:
        p = None
    d.note("eou", "score", item_id=vad.item_id, head=head, p=p)
    scores = replace(vad.question, waiting=vad.question.waiting - {head}, **{head: p})
    vad = replace(vad, question=scores)
    d.set(vad=vad)
    return close(d, vad) if not scores.waiting else None


def close(d: Draft, vad: Stopped) -> float:
    """Make a delay of the answers there are -> when to commit, in wall time."""
    d.disarm("eou_timeout")
    d.set(vad=replace(vad, ask=None))
    eou, stt = d.s.settings.eou, d.s.settings.transcription
    threshold = eou.thresholds.get((stt.language if stt else None) or "", eou.p_threshold)
    p = _score(eou, vad)
    if p is None:
        delay = max(eou.min_delay_ms, UNSURE_WAIT_MS)
    else:
        delay = commit_delay_ms(p, threshold=threshold, min_ms=eou.min_delay_ms, max_ms=eou.max_delay_ms, k=eou.curve_k)
    d.note(
        "eou", "verdict", item_id=vad.item_id, p=p, audio=vad.question.audio, words=vad.question.words,
        threshold=threshold, delay_ms=delay,
    )  # fmt: skip
    since = d.at if eou.stack_silence else vad.last_voiced_at
    return since + delay


def _score(eou: Eou, vad: Stopped) -> float | None:
    """The probability that counts; None where nothing can be said."""
    sound, words, rule = vad.question.audio, vad.question.words, eou.fusion_rule
    if words is None and vad.transcript is not None and (eou.kind in _WORDS or sound is None):
        words = text_score(vad.transcript.text)  # the model failed, or there is none
        rule = "weighted" if rule == "gated" else rule  # what was learned, was learned of a model's scores
    if eou.kind == "fusion" and sound is not None and words is not None:
        return fuse(rule, sound, words, eou.fusion_weight_text)
    if eou.kind in _SOUND and sound is not None:
        return sound
    return words
