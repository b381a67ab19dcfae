"""Long texts in pieces that overlap, cut where a reader would pause."""

import re
from typing import Final

LONG_CHARS: Final = 20_000
"""Up to here a text goes to the model as it is."""
CHUNK_CHARS: Final = 6_000
OVERLAP_CHARS: Final = CHUNK_CHARS * 15 // 100
"""What stands on an edge is seen whole at least once."""
_PAUSES: Final = (re.compile(r"\n\s*\n"), re.compile(r"[.!?]\s|[。！？\n]"), re.compile(r"\s"))
"""Where to cut, best first: after a paragraph, after a sentence, between words."""


def is_long(text: str) -> bool:
    return len(text) > LONG_CHARS


def chunks(text: str, *, size: int = CHUNK_CHARS, overlap: int = OVERLAP_CHARS) -> list[str]:
    """The text in pieces of at most `size` characters; each begins `overlap` characters before the last one's end."""
    pieces, start = [], 0
    while len(text) - start > size:
        end = _cut(text, start, start + size, least=start + max(overlap + 1, size * 3 // 4))
        pieces.append(text[start:end])
        start = end - overlap
    return [*pieces, text[start:]]


def _cut(text: str, start: int, end: int, *, least: int) -> int:
    """The last good place before `end`, but not before `least`: pieces that are too small cost calls."""
    for pause in _PAUSES:
        found = [match.end() for match in pause.finditer(text, max(start, least), end)]
        if found:
            return found[-1]
    return end
