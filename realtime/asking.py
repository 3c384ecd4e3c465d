"""What a response is asked to be, what chat is asked for it, and how the wire shows it (SPEC section 8)."""

from __future__ import annotations

from . import alphabet as a
from . import events as e
from .context import RESERVE, fit, tokens
from .conversation import Item, to_chat
from .draft import Draft
from .effects import StartChat
from .ids import Epoch, ResponseId
from .settings import JsonObject, Settings
from .state import Chat, Plan


def new_plan(d: Draft, params: e.ResponseParams, response_id: str | None = None) -> Plan:
    s = d.s.settings
    text_only = "audio" not in s.output_modalities if params.text_only is None else params.text_only
    limit = params.max_output_tokens
    if limit is None and isinstance(s.max_output_tokens, int):
        limit = s.max_output_tokens
    epoch = Epoch(d.s.epoch + 1)
    d.set(epoch=epoch)
    return Plan(
        id=ResponseId(response_id or d.fresh("resp")),
        epoch=epoch,
        params=params,
        spoken=not (text_only or params.out_of_band),
        voice=params.voice or s.voice,
        output_format=s.output_format,
        max_output_tokens=limit,
        conversation_id=None if params.out_of_band else d.s.conversation_id,
        created_at=d.at,
    )


def ask(d: Draft, plan: Plan, items: tuple[Item, ...]) -> StartChat:
    """What chat is asked for a response to these items."""
    s, p = d.s.settings, plan.params
    return StartChat(
        epoch=plan.epoch,
        response_id=plan.id,
        messages=to_chat(context_items(d, items, p)),
        instructions=s.instructions if p.instructions is None else p.instructions,
        tools=offered(s, p),
        tool_choice=s.tool_choice if p.tool_choice is None else p.tool_choice,
        max_output_tokens=plan.max_output_tokens,
        temperature=s.temperature if p.temperature is None else p.temperature,
        spoken=plan.spoken,
        voice=plan.voice,
        speed=s.speed,
        parallel_tool_calls=s.parallel_tool_calls,
    )


def offered(s: Settings, p: e.ResponseParams) -> tuple[JsonObject, ...]:
    """The tools of a response: its own list, else the server's and the session's. A response beside the conversation
    gets none of the server's."""
    if p.tools is not None:
        return p.tools
    return s.tools if p.out_of_band else s.agent.tools + s.tools


def context_items(d: Draft, items: tuple[Item, ...], p: e.ResponseParams | None = None) -> tuple[Item, ...]:
    """What of the conversation, or of a response's own input, chat is given: as much as fits."""
    s = d.s.settings
    p = p or e.ResponseParams()
    if p.input is not None:
        named = (d.s.conversation.get(x.id) if isinstance(x, e.ItemReference) else x for x in p.input)
        items = tuple(x for x in named if x is not None)  # an item may have been deleted while the response waited
    fixed = tokens(s.instructions if p.instructions is None else p.instructions)
    fixed += tokens(str(offered(s, p)))
    limit = p.max_output_tokens or (s.max_output_tokens if isinstance(s.max_output_tokens, int) else RESERVE)
    return fit(items, s.truncation, max(0, d.s.limits.context_tokens - fixed - limit))


def view(
    plan: Plan,
    status: a.ResponseStatus,
    *,
    output: tuple[Item, ...] = (),
    reason: str | None = None,
    error_code: str | None = None,
    chat: Chat | None = None,
    audio_end_ms: int | None = None,
) -> a.ResponseView:
    """A response as the wire shows it."""
    usage = None if chat is None else (chat.input_tokens, chat.output_tokens, chat.cached_tokens, plan.spoken)
    return a.ResponseView(
        id=plan.id,
        status=status,
        conversation_id=plan.conversation_id,
        text_only=not plan.spoken,
        voice=plan.voice,
        output_format=plan.output_format,
        max_output_tokens="inf" if plan.max_output_tokens is None else plan.max_output_tokens,
        output=output,
        reason=reason,
        error_code=error_code,
        usage=usage,
        metadata=plan.params.metadata,
        audio_end_ms=audio_end_ms,
        first_token_ms=None if chat is None or chat.first_at is None else round(chat.first_at - plan.created_at),
    )
