"""The vectors a simulated provider answers with: the same text gives the same vector, of length one.

They say which text they belong to and nothing of what it means.
"""

import hashlib
import math
import struct
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from headgate.core.answer import Vector
from headgate.core.call import CHARS_PER_TOKEN
from headgate.core.errors import ProviderFailure
from headgate.core.failures import from_answer
from headgate.formats.embeddings import EmbeddingRequest
from headgate.providers.simulated.script import Outcome

USUAL_DIMENSIONS: Final = 16
MOST_DIMENSIONS: Final = 4096
MAX_NUMBERS: Final = 200_000
"""In all vectors of an answer. They are computed in the event loop: a million takes 200 ms."""
_NO_VECTOR: Final = msgspec.Raw(b"[]")
_encode: Final = msgspec.json.Encoder().encode


def vector_of(text: str, *, seed: int, dimensions: int) -> Vector:
    """A direction that only this text, with this seed, points in."""
    mark = f"{seed}:{text}".encode(errors="surrogatepass")
    digest = hashlib.shake_256(mark).digest(4 * dimensions)
    # Odd numbers, none of which is zero: even a vector of one dimension has a length to divide by.
    numbers = [2 * number + 1 for number in struct.unpack(f"<{dimensions}i", digest)]
    length = math.hypot(*numbers)
    return tuple(number / length for number in numbers)


def encoded(text: str, *, seed: int, dimensions: int) -> msgspec.Raw:
    """The vector of a text as JSON."""
    return msgspec.Raw(_encode(vector_of(text, seed=seed, dimensions=dimensions)))


def count_tokens(texts: Sequence[str]) -> int:
    """Each text is counted by itself."""
    return sum(-(-len(text) // CHARS_PER_TOKEN) for text in texts)


def spoil(vectors: Sequence[msgspec.Raw], outcome: Outcome) -> Sequence[msgspec.Raw]:
    """What becomes of good vectors when an answer goes bad without failing."""
    match outcome:
        case Outcome.BLANK:
            return [_NO_VECTOR] * len(vectors)
        case Outcome.REPEAT:
            return [*vectors, vectors[-1]]
        case Outcome.BAD_JSON:
            return vectors[:-1]
        case _:
            return vectors


def read_dimensions(request: EmbeddingRequest, *, model: str, now: datetime) -> int:
    """How long the vectors shall be; what makes no sense is answered with 400, as by a real provider."""
    asked = request.params.get("dimensions")
    dimensions = USUAL_DIMENSIONS if asked is None else asked
    if (
        not isinstance(dimensions, int)
        or isinstance(dimensions, bool)
        or not 1 <= dimensions <= MOST_DIMENSIONS
    ):
        message = f"dimensions must be a whole number, 1–{MOST_DIMENSIONS}"
    elif (count := len(request.texts)) * dimensions > MAX_NUMBERS:
        message = (
            f"{count:,} texts with {dimensions:,} dimensions are {count * dimensions:,} numbers; the most is"
            f" {MAX_NUMBERS:,}. Send fewer texts, or ask for fewer dimensions"
        )
    else:
        return dimensions
    told = f"{model}: {message} (simulated)"
    raise ProviderFailure(from_answer(400, code="invalid_request_error", message=told, now=now))
