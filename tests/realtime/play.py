"""The player of sessions, under the name that the tests here use."""

from bargein.conformance.play import Play, user

__all__ = ["Play", "user"]
