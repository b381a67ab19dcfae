"""The vectors a simulated provider answers with: the same text gives the same vector, of length one.

They say which text they belong to and nothing of what it means.
"""

import hashlib
import math
import struct
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from headgate.core.embeddings import Vector
from headgate.core.errors import ProviderFailure
from headgate.core.failures import from_answer
from headgate.providers.simulated.script import Outcome

USUAL_DIMENSIONS: Final = 16
MOST_DIMENSIONS: Final = 4096


def vector_of(text: str, *, seed: int, dimensions: int) -> Vector:
    """A direction that only this text, with this seed, points in."""
    mark = f"{seed}:{text}".encode(errors="surrogatepass")
    digest = hashlib.shake_256(mark).digest(4 * dimensions)
    # Odd numbers, none of which is zero: even a vector of one dimension has a length to divide by.
    numbers = [2 * number + 1 for number in struct.unpack(f"<{dimensions}i", digest)]
    length = math.hypot(*numbers)
    return tuple(number / length for number in numbers)


def spoil(vectors: Sequence[Vector], outcome: Outcome) -> Sequence[Vector]:
    """What becomes of good vectors when an answer goes bad without failing."""
    match outcome:
        case Outcome.BLANK:
            return [() for _ in vectors]
        case Outcome.REPEAT:
            return [*vectors, vectors[-1]]
        case Outcome.BAD_JSON:
            return vectors[:-1]
        case _:
            return vectors


def read_dimensions(params: Mapping[str, Any], *, model: str, now: datetime) -> int:
    """How long the vectors shall be; what makes no sense is answered with 400, as by a real provider."""
    asked = params.get("dimensions")
    if asked is None:
        return USUAL_DIMENSIONS
    if isinstance(asked, int) and not isinstance(asked, bool) and 1 <= asked <= MOST_DIMENSIONS:
        return asked
    message = f"{model}: dimensions must be a whole number, 1–{MOST_DIMENSIONS} (simulated)"
    raise ProviderFailure(from_answer(400, code="invalid_request_error", message=message, now=now))
