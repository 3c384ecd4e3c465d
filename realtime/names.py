"""Names that stock clients send without being asked: OpenAI's model names mean this server's default."""

from __future__ import annotations

from collections.abc import Collection

OPENAI_PREFIXES = ("gpt-", "chatgpt-", "o1", "o3", "o4", "whisper-1", "tts-1")

def is_known_model(name: str, local: Collection[str]) -> bool:
    """Whether a model name is the default, OpenAI's, or one that is loaded here."""
    return name in ("", "default") or name in local or name.startswith(OPENAI_PREFIXES)
