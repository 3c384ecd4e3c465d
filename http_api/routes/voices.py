"""Names of voices. There is one; the names that stock clients send mean it too."""

from __future__ import annotations

from .fields import Fields

OWN = "heart"
STOCK = (
    "alloy", "ash", "ballad", "coral", "echo", "fable", "onyx", "nova", "sage", "shimmer", "verse", "marin", "cedar",
)  # fmt: skip


def voice(f: Fields) -> str:
    """The request's `voice`: a name, or an object with one. ApiError for a name that is not known."""
    value = f.take("voice", OWN)
    name = value.get("id") if isinstance(value, dict) else value
    if not isinstance(name, str) or name not in (OWN, *STOCK):
        known = f"there is {OWN!r}, also as {', '.join(STOCK)}"
        raise f.refuse("voice", f"there is no voice {str(name)[:40]!r}; {known}", "invalid_value")
    return OWN
