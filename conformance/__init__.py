"""Trace invariants and fixtures, usable on any server."""
