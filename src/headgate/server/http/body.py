"""Where a body ends, by its length or by its chunks. Pure: bytes in, body and rest out."""

import re
from typing import Final, Protocol

from headgate.server.http.head import too_large
from headgate.server.http.limits import MAX_CHUNKS
from headgate.server.http.refusals import malformed

_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")
_SIZE_LINE_BYTES: Final = 10
_END: Final = b"\r\n"


class Body(Protocol):
    """Fed with what arrives until it is whole."""

    whole: bool

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """What belongs to the body, and what comes behind it."""
        ...

    def may_discard(self, most: int) -> bool:
        """The rest is known to be short."""
        ...


class SizedBody:
    """As long as Content-Length said."""

    __slots__ = ("_left", "whole")

    def __init__(self, length: int) -> None:
        self._left = length
        self.whole = length == 0

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        left = self._left
        if len(data) < left:
            self._left = left - len(data)
            return data, b""
        self._left = 0
        self.whole = True
        return data[:left], data[left:]

    def may_discard(self, most: int) -> bool:
        return self._left <= most


class ChunkedBody:
    """Chunks without extensions or trailers: nobody needs them, and parsers disagree about them."""

    __slots__ = ("_chunks", "_last", "_left", "_most_bytes", "_received", "_tail", "whole")

    def __init__(self, most_bytes: int) -> None:
        self.whole = False
        self._most_bytes = most_bytes
        self._received = 0
        self._chunks = 0
        self._left = 0  # Of the chunk and the line end behind it.
        self._last = False  # The chunk of size 0 was announced.
        self._tail = b""  # A piece of a size line.

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        if self._tail:
            data, self._tail = self._tail + data, b""
        pieces: list[bytes] = []
        at = 0
        while at < len(data) and not self.whole:
            at = self._inside(data, at, pieces) if self._left else self._between(data, at)
        return b"".join(pieces), data[at:]

    def may_discard(self, most: int) -> bool:
        """Never known beforehand."""
        del most
        return False

    def _between(self, data: bytes, at: int) -> int:
        match = _SIZE_LINE.match(data, at)
        if match is None:
            if len(data) - at >= _SIZE_LINE_BYTES or not _may_become_size_line(data[at:]):
                raise malformed("a chunk must begin with its size in hexadecimal digits and CR LF")
            self._tail = data[at:]
            return len(data)
        size = int(match[1], 16)
        self._received += size
        self._chunks += 1
        if self._received > self._most_bytes:
            raise too_large(self._most_bytes)
        if self._chunks > MAX_CHUNKS:
            raise malformed(f"a body may come in at most {MAX_CHUNKS} chunks")
        self._last = size == 0
        self._left = size + 2
        return match.end()

    def _inside(self, data: bytes, at: int, pieces: list[bytes]) -> int:
        content = self._left - 2
        if content > 0:
            piece = data[at : at + content]
            pieces.append(piece)
            self._left -= len(piece)
            return at + len(piece)
        if data[at : at + self._left] != _END[-self._left :][: len(data) - at]:
            raise malformed("a chunk must end with CR LF, and no trailers may follow the last")
        taken = min(self._left, len(data) - at)
        self._left -= taken
        self.whole = self._last and self._left == 0
        return at + taken


def _may_become_size_line(data: bytes) -> bool:
    digits = data.removesuffix(b"\r")
    return all(byte in b"0123456789abcdefABCDEF" for byte in digits) and (digits != b"" or data == b"")
