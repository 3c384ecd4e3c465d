"""A response in flight: what chat writes, what TTS plans, what the pacer plays (SPEC section 8).

Work comes back under the epoch it was asked under; what is stale has no effect.
"""

from __future__ import annotations

from dataclasses import replace

from . import alphabet as a
from . import arguments
from . import events as e
from .conversation import Message, Part
from .draft import Draft
from .echo import FRAME_MS, play
from .ending import complete, drop_prediction, finish_out_of_band, retire
from .ids import Epoch, ItemId
from .state import Chat, Created, Drain, Held, Live, OutOfBand, Plan, Predicted, Streaming, live


def _draft_of(d: Draft, epoch: Epoch) -> Predicted | None:
    resp = d.s.resp
    return resp if isinstance(resp, Predicted) and resp.plan.epoch == epoch else None


def _of_epoch(d: Draft, epoch: Epoch) -> Live | None:
    resp = live(d.s.resp)
    return resp if resp is not None and resp.plan.epoch == epoch else None


def keep(d: Draft, resp: Live | Predicted) -> None:
    """Put a changed response back, inside its hold where it is held."""
    held = d.s.resp
    d.set(resp=replace(held, inner=resp) if isinstance(held, Held) and not isinstance(resp, Predicted) else resp)


def _fails(d: Draft, error_code: str) -> None:
    """Chat or TTS has failed. A held response learns of it when it is resumed."""
    if isinstance(d.s.resp, Held):
        d.set(resp=replace(d.s.resp, failure=error_code))
    else:
        retire(d, "failed", error_code=error_code)


def _oob_of(d: Draft, epoch: Epoch) -> OutOfBand | None:
    return next((o for o in d.s.oob.values() if o.plan.epoch == epoch), None)


def _open_item(d: Draft, plan: Plan, kind: str, index: int) -> ItemId:
    """Open the message item: in memory, then announced. `index`: its place in the output."""
    item_id = ItemId(d.fresh("item"))
    item = Message(item_id, "assistant", (), "in_progress")
    d.emit(a.OutputItemAdded(plan.id, index, item))
    if not plan.params.out_of_band:
        d.set(conversation=d.s.conversation.insert(item))
        d.emit(a.ItemAdded(item, d.s.conversation.before(item_id)))
    part = Part("output_audio", "") if kind == "audio" else Part("output_text", "")
    d.emit(a.ContentPartAdded(plan.id, item_id, index, part))
    return item_id


def _wrote(d: Draft, chat: Chat, text: str) -> Chat:
    first = d.at if chat.first_at is None else chat.first_at
    return replace(chat, text=chat.text + text, first_at=first)


def chat_delta(d: Draft, ev: e.ChatDelta) -> None:
    if (out := _oob_of(d, ev.epoch)) is not None:
        chat = _wrote(d, out.chat, ev.text)
        if (item_id := out.item_id) is None:
            chat = replace(chat, message_index=arguments.num_told(chat))
            item_id = _open_item(d, out.plan, "text", chat.message_index)
        d.emit(a.TextDelta(out.plan.id, item_id, chat.message_index, ev.text))
        d.set(oob={**d.s.oob, out.plan.id: replace(out, chat=chat, item_id=item_id)})
        return
    if (draft := _draft_of(d, ev.epoch)) is not None:
        d.set(resp=replace(draft, chat=_wrote(d, draft.chat, ev.text)))
        return
    resp = _of_epoch(d, ev.epoch)
    if resp is None:
        return
    chat = _wrote(d, resp.chat, ev.text)
    if resp.plan.spoken:
        keep(d, replace(resp, chat=chat))
        return
    if isinstance(resp, Created):
        chat = replace(chat, message_index=arguments.num_told(chat))
        item_id = _open_item(d, resp.plan, "text", chat.message_index)
    else:
        item_id = resp.item_id
    d.emit(a.TextDelta(resp.plan.id, item_id, chat.message_index, ev.text))
    keep(d, Streaming(resp.plan, item_id, chat, resp.voice))


def tool_delta(d: Draft, ev: e.ToolDelta) -> None:
    """Chat writes a call. Its pieces go out at once, or when the message before them has begun."""
    if (out := _oob_of(d, ev.epoch)) is not None:
        chat = arguments.wrote(_wrote(d, out.chat, ""), ev)
        chat = arguments.tell(d, out.plan, chat, messages=out.item_id is not None)
        d.set(oob={**d.s.oob, out.plan.id: replace(out, chat=chat)})
    elif (resp := _draft_of(d, ev.epoch) or _of_epoch(d, ev.epoch)) is not None:
        keep(d, replace(resp, chat=arguments.wrote(_wrote(d, resp.chat, ""), ev)))
        tell_calls(d)


def tell_calls(d: Draft) -> None:
    """What was written of calls, where the live response has come so far."""
    resp = live(d.s.resp)
    if resp is None or not resp.chat.calling or (isinstance(resp, Created) and resp.chat.text.strip()):
        return
    keep(d, replace(resp, chat=arguments.tell(d, resp.plan, resp.chat, messages=not isinstance(resp, Created))))


def chat_done(d: Draft, ev: e.ChatDone) -> None:
    def close(chat: Chat) -> Chat:
        return replace(
            chat,
            done=True,
            tool_calls=ev.tool_calls,
            limited=ev.limited,
            input_tokens=ev.input_tokens,
            output_tokens=ev.output_tokens,
            cached_tokens=ev.cached_tokens,
        )

    if (out := _oob_of(d, ev.epoch)) is not None:
        finish_out_of_band(d, replace(out, chat=close(out.chat)), "incomplete" if ev.limited else "completed")
        return
    if (draft := _draft_of(d, ev.epoch)) is not None:
        d.set(resp=replace(draft, chat=close(draft.chat)))
        return
    resp = _of_epoch(d, ev.epoch)
    if resp is None:
        return
    keep(d, replace(resp, chat=close(resp.chat)))
    advance(d)


def chat_failed(d: Draft, ev: e.ChatFailed) -> None:
    if _draft_of(d, ev.epoch) is not None:
        drop_prediction(d)
    elif (out := _oob_of(d, ev.epoch)) is not None:
        d.note("llm", "failed", message=ev.message)
        finish_out_of_band(d, out, "failed", error_code="llm_error")
    elif _of_epoch(d, ev.epoch) is not None:
        d.note("llm", "failed", message=ev.message)
        _fails(d, "llm_error")


def too_slow(d: Draft) -> None:
    """Chat has not begun to answer in time."""
    if live(d.s.resp) is not None:
        d.note("llm", "too_slow")
        _fails(d, "llm_error")


def phrase_planned(d: Draft, ev: e.PhrasePlanned) -> None:
    resp = _of_epoch(d, ev.epoch) or _draft_of(d, ev.epoch)
    if resp is not None and not resp.voice.cleared:
        v = resp.voice
        keep(d, replace(resp, voice=replace(v, words=v.words + ev.words, planned_ms=ev.planned_ms)))


def speech_done(d: Draft, ev: e.SpeechDone) -> None:
    resp = _of_epoch(d, ev.epoch) or _draft_of(d, ev.epoch)
    if resp is not None:
        keep(d, replace(resp, voice=replace(resp.voice, done=True)))
        advance(d)


def speech_failed(d: Draft, ev: e.SpeechFailed) -> None:
    if _draft_of(d, ev.epoch) is not None:
        drop_prediction(d)
    elif _of_epoch(d, ev.epoch) is not None:
        d.note("tts_req", "failed", message=ev.message)
        _fails(d, "tts_error")


def frame_due(d: Draft, ev: e.FrameDue) -> None:
    """The pacer's next frame goes out, and with it the words that begin in it."""
    resp = _of_epoch(d, ev.epoch)
    if resp is None or resp.voice.cleared or isinstance(d.s.resp, Held):
        return
    first = isinstance(resp, Created)
    if isinstance(resp, Created):
        resp = replace(resp, chat=replace(resp.chat, message_index=arguments.num_told(resp.chat)))
        item_id = _open_item(d, resp.plan, "audio", resp.chat.message_index)
    else:
        item_id = resp.item_id
    index, v = resp.chat.message_index, resp.voice
    n = v.num_announced
    while n < len(v.words) and v.words[n].start_ms < ev.written_ms:
        d.emit(a.SpokenDelta(resp.plan.id, item_id, index, v.words[n].text))
        n += 1
    d.emit(a.AudioDelta(resp.plan.id, item_id, index))
    starts_in = ev.written_ms - FRAME_MS - ev.played_ms  # what was written before is still to be played
    d.set(echo=play(d.s.echo, d.at + max(0, starts_in), ev.level_db))
    if first:
        d.emit(a.OutputStarted(resp.plan.id))
    v = replace(v, num_announced=n, written_ms=ev.written_ms, played_ms=ev.played_ms, frame_at=d.at)
    if isinstance(resp, Drain):
        d.set(resp=replace(resp, voice=v))
    else:
        d.set(resp=Streaming(resp.plan, item_id, resp.chat, v))
        tell_calls(d)
        advance(d)  # everything may have been said before its first frame was due


def playout_drained(d: Draft, ev: e.PlayoutDrained) -> None:
    resp = _of_epoch(d, ev.epoch)
    if resp is not None:
        voice = replace(resp.voice, played_ms=ev.played_ms, frame_at=d.at)
        keep(d, replace(resp, voice=voice))
        advance(d)


def advance(d: Draft) -> None:
    """Move on where chat and speech allow it: to Drain, or to the end. A held response waits."""
    resp = live(d.s.resp)
    if resp is None or not resp.chat.done or isinstance(d.s.resp, Held):
        return
    v = resp.voice
    if not resp.plan.spoken or v.cleared or (v.done and v.played_ms >= v.planned_ms):
        complete(d)
        return
    if v.done and isinstance(resp, Streaming):
        s = d.s.settings
        cap = min(max(2 * v.planned_ms, s.drain_cap_floor_ms), s.drain_cap_ceiling_ms)
        d.arm("drain_cap", d.at + cap)
        d.set(resp=Drain(resp.plan, resp.item_id, resp.chat, v))


def drain_cap(d: Draft) -> None:
    retire(d, "incomplete")
