"""The base of every request's body."""

from msgspec import Struct


class Body(Struct, kw_only=True, forbid_unknown_fields=True):
    """Strict, and by name."""
