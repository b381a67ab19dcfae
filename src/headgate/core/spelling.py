"""Help with a name nobody knows: which known one was probably meant."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], *, likeness: float = 0.6) -> str:
    """The middle of a message: `; did you mean 'slots'?`, or nothing when no known name is near."""
    # Long words are no slips of the pen, and comparing them takes quadratic time.
    near = (
        difflib.get_close_matches(
            word.lower(), sorted(str(name) for name in known if name), n=1, cutoff=likeness
        )
        if len(word) <= 60
        else ()
    )
    return f"; did you mean {near[0]!r}?" if near else ""


def unknown_key(key: str, known: Iterable[str]) -> str:
    names = sorted(known)
    return f"is no setting{did_you_mean(key, names) or ';'} known: {', '.join(names)}"
