"""Ids that nobody can guess and nobody else has. Drawn from the system many at a time: a draw stops all other threads."""

import os
from typing import Final

_DIGITS: Final = 32
_AT_ONCE: Final = 64
_drawn: list[str] = []


def random_id() -> str:
    """32 hex digits."""
    try:
        return _drawn.pop()
    except IndexError:
        digits = os.urandom(_AT_ONCE * _DIGITS // 2).hex()
        first, *others = (digits[start : start + _DIGITS] for start in range(0, len(digits), _DIGITS))
        _drawn.extend(others)
        return first


if hasattr(os, "register_at_fork"):
    # A child must not hand out what its parent will hand out too.
    os.register_at_fork(after_in_child=_drawn.clear)
