"""Texts that go round in circles, and what is tried instead. Works for languages without spaces, too."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

SHORTEST_SENTENCE_CHARS: Final = 8
"""Shorter ones ("Yes.", "1.") may come again in any text."""
MOST_TIMES: Final = 2
"""So often may one sentence stand in a summary."""
ROUNDS: Final = 4
"""A tail that says one thing this often in a row is stuck."""
SHORTEST_TAIL_CHARS: Final = 24
LONGEST_ROUND_CHARS: Final = 400
HOTTER: Final = 0.25
HOTTEST: Final = 1.0
_SENTENCE_END: Final = re.compile(r"(?<=[.!?。！？])\s*|\n+")


def repeats(text: str) -> bool:
    """Whether a sentence comes a third time, or the end runs in circles."""
    sentences = Counter(
        folded
        for sentence in _SENTENCE_END.split(text)
        if len(folded := " ".join(sentence.casefold().split())) >= SHORTEST_SENTENCE_CHARS
    )
    return any(times > MOST_TIMES for times in sentences.values()) or _ends_in_circles(text.rstrip())


def _ends_in_circles(text: str) -> bool:
    for size in range(1, min(LONGEST_ROUND_CHARS, len(text) // ROUNDS) + 1):
        length = max(size * ROUNDS, SHORTEST_TAIL_CHARS)
        tail = text[-length:]
        if len(tail) == length and tail[size:] == tail[:-size]:
            return True
    return False


def parameters(temperature: float | None, regeneration: int) -> Mapping[str, Any]:
    """For the first try (0) and each one after it: a little hotter, to leave the rut. None: nothing to say."""
    if temperature is None:
        return {}
    hottest = max(temperature, HOTTEST)
    return {"temperature": round(min(temperature + HOTTER * regeneration, hottest), 2)}
