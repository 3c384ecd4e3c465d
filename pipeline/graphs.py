"""The graph of a call: what runs between the turn machine's effects and the transport.

    prompt -> chat -> speakable -> tts -> playout

The ears (`nodes/hearing.py`) are driven by the transport and the engine's callbacks, not by a queue: audio is taken as
it arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bargein.realtime import events as e
from bargein.realtime.effects import SayLine, StartChat

from .channel import Channel, Epochs
from .graph import Graph
from .messages import PhraseToSay, SpokenAudio, TextPiece
from .nodes.chat import ChatSource, chat_node
from .nodes.playout import Playout
from .nodes.speech import Mouth, speakable_node, tts_node


@dataclass(frozen=True, slots=True)
class Call:
    """The running graph and the ports that the session uses."""

    graph: Graph
    prompts: Channel[StartChat | SayLine]


def call_graph(
    *,
    source: ChatSource,
    mouth: Mouth,
    playout: Playout,
    epochs: Epochs,
    tell: Callable[[e.Input], None],
    now: Callable[[], float],
) -> Call:
    """Wire up the speaking half of a call."""
    prompts: Channel[StartChat | SayLine] = Channel("prompts", 16, "block", epochs)
    text: Channel[TextPiece] = Channel("text", 256, "block", epochs)
    phrases: Channel[PhraseToSay] = Channel("phrases", 16, "block", epochs)
    audio: Channel[SpokenAudio] = Channel("audio", 16, "block", epochs)
    g = Graph()
    g.node("chat", lambda: chat_node(prompts, text, source, epochs, tell, now))
    g.node("speakable", lambda: speakable_node(text, phrases))
    g.node("tts", lambda: tts_node(phrases, audio, mouth, epochs, tell, now, playout.buffered_ms))
    g.node("playout", lambda: playout.run(audio))
    g.edge("machine", "chat", prompts)
    g.edge("chat", "speakable", text)
    g.edge("speakable", "tts", phrases)
    g.edge("tts", "playout", audio)
    return Call(g, prompts)
