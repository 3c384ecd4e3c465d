"""Has the user finished? The question that a speech stop opens, and what becomes of its answers (SPEC section 6).

A question has one or two heads: the sound (a classifier of audio) and the words (a language model, or the rules of
`eou.text_score`). It is closed once every head has answered or patience is over; then it is a delay.
"""

from __future__ import annotations

from dataclasses import replace

from .draft import Draft
from .effects import AskEou, AskEouText, EouContext, PrepareEou, PrepareEouText
from .eou import commit_delay_ms, fuse, text_score
from .ids import ItemId
from .settings import Eou
from .state import Question, Stopped

UNSURE_WAIT_MS = 1000
SAME_MS = 50  # two delays this close are one

_SOUND = ("audio", "fusion")
_WORDS = ("heuristic", "text", "fusion", "integrated")


def prepare_sound(d: Draft, item_id: ItemId, end_ms: int, last_voiced_ms: int) -> None:
    """A silence begins that may be the end: the classifier of the sound may think about it already."""
    eou = d.s.settings.eou
    if eou.kind in _SOUND:
        d.do(PrepareEou(item_id, end_ms, last_voiced_ms, eou.audio_window_ms))


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
    d.do(AskEouText(vad.item_id, vad.ask, text, _context(d)))
    return None


def prepare(d: Draft) -> None:
    """The user begins to speak: what the words' model needs of the conversation is known."""
    eou = d.s.settings.eou
    if eou.kind in ("text", "fusion", "integrated"):
        d.do(PrepareEouText(_context(d)))


def _context(d: Draft) -> EouContext:
    s = d.s.settings
    messages = d.s.conversation.chat_messages()
    spoken = [m for m in messages if m.role in ("user", "assistant") and m.content]
    turns = tuple(spoken[-s.eou.context_turns :]) if s.eou.context_turns else ()
    return EouContext(turns, s.eou.max_context_tokens, messages, s.instructions, s.eou.kind != "text")


def may_be_the_end(d: Draft, text: str, p: float | None) -> bool:
    """Whether words may well be a turn's last, by a model's `p` or, without, by the rules. The sound has not been asked
    yet: half of what makes an end is enough."""
    score = text_score(text.strip()) if p is None or not 0.0 <= p <= 1.0 else p
    return score >= _threshold(d) / 2


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
    return close(d, vad) if not scores.waiting or _settled(d, vad) else None


def _settled(d: Draft, vad: Stopped) -> bool:
    """Whether the sound's answer would change next to nothing, so that the words' is enough."""
    eou, words = d.s.settings.eou, vad.question.words
    if eou.kind != "fusion" or words is None:
        return False
    least, most = (_delay(d, fuse(eou.fusion_rule, sound, words, eou.fusion_weight_text)) for sound in (0.98, 0.02))
    passed = d.at - vad.last_voiced_at
    return most <= max(passed, least + SAME_MS)


def _delay(d: Draft, p: float) -> int:
    eou = d.s.settings.eou
    return commit_delay_ms(p, threshold=_threshold(d), min_ms=eou.min_delay_ms, max_ms=eou.max_delay_ms, k=eou.curve_k)


def _threshold(d: Draft) -> float:
    eou, stt = d.s.settings.eou, d.s.settings.transcription
    return eou.thresholds.get((stt.language if stt else None) or "", eou.p_threshold)


def close(d: Draft, vad: Stopped) -> float:
    """Make a delay of the answers there are -> when to commit, in wall time."""
    d.disarm("eou_timeout")
    d.set(vad=replace(vad, ask=None))
    eou = d.s.settings.eou
    p = _score(eou, vad)
    delay = max(eou.min_delay_ms, UNSURE_WAIT_MS) if p is None else _delay(d, p)
    d.note(
        "eou", "verdict", item_id=vad.item_id, p=p, audio=vad.question.audio, words=vad.question.words,
        threshold=_threshold(d), delay_ms=delay,
    )  # fmt: skip
    since = d.at if eou.stack_silence else vad.last_voiced_at
    return since + delay


def _score(eou: Eou, vad: Stopped) -> float | None:
    """The probability that counts; None where nothing can be said. A head that failed leaves the other's score."""
    sound, words, rule = vad.question.audio, vad.question.words, eou.fusion_rule
    if words is None and vad.transcript is not None and (eou.kind in _WORDS or sound is None):
        words = text_score(vad.transcript.text)  # the model failed, or there is none
        rule = "weighted" if rule == "gated" else rule  # what was learned, was learned of a model's scores
    if eou.kind == "fusion" and words is not None:
        if sound is None and rule == "gated":
            sound = 0.5  # the rule knows what the words are worth without the sound
        return words if sound is None else fuse(rule, sound, words, eou.fusion_weight_text)
    return sound if eou.kind in _SOUND and sound is not None else words
