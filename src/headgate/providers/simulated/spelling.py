"""Help with a name nobody knows: which known one was probably meant."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error message: `; did you mean 'slow'?`, or nothing when no known name is near."""
    near = difflib.get_close_matches(word, [str(name) for name in known if name], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
