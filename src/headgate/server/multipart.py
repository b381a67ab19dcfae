"""`multipart/form-data`, read while it arrives: names of parts and pieces of their content, nothing gathered."""

import enum
import re
from collections.abc import Iterator
from typing import Final

import msgspec

from headgate.core.errors import InvalidRequest

MOST_HEADER_BYTES: Final = 8 * 1024
MOST_PARTS: Final = 32
_TYPE: Final = re.compile(
    r"""multipart/form-data\s*;(?:.*;)?\s*boundary=(?:"([^"]{1,70})"|([^\s";,]{1,70}))\s*(?:;.*)?""",
    re.IGNORECASE,
)
_DISPOSITION: Final = re.compile(rb"(?:^|\r\n)content-disposition:\s*form-data([^\r\n]*)", re.IGNORECASE)
_PARAMETER: Final = re.compile(rb""";\s*([a-z]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s";]+))""", re.IGNORECASE)


class Part(msgspec.Struct, frozen=True):
    """The beginning of a part. What follows is its content, up to the next one."""

    name: str
    filename: str | None


class _Place(enum.Enum):
    BEFORE = enum.auto()
    BOUNDARY = enum.auto()
    HEADERS = enum.auto()
    CONTENT = enum.auto()
    END = enum.auto()


def read_boundary(content_type: str) -> bytes:
    found = _TYPE.fullmatch(content_type)
    if found is None:
        raise InvalidRequest("upload a file as multipart/form-data", param="content-type")
    return (found[1] or found[2]).encode("latin-1")


class Multipart:
    """Fed with what arrives."""

    def __init__(self, boundary: bytes) -> None:
        self._between = b"\r\n--" + boundary
        # The first boundary has no line before it.
        self._held = b"\r\n"
        self._place = _Place.BEFORE
        self._parts = 0

    def feed(self, data: bytes) -> Iterator[Part | bytes]:
        """What is known by now: parts that begin, pieces of the content of the last one."""
        self._held += data
        while True:
            place, held = self._place, len(self._held)
            match place:
                case _Place.BEFORE | _Place.CONTENT:
                    piece = self._content()
                    if piece and place is _Place.CONTENT:
                        yield piece
                case _Place.BOUNDARY:
                    self._boundary()
                case _Place.HEADERS:
                    part = self._headers()
                    if part is not None:
                        yield part
                case _Place.END:
                    self._held = b""
                    return
            if self._place is place and len(self._held) == held:
                return

    def close(self) -> None:
        """All has arrived: it had better be whole."""
        if self._place is not _Place.END:
            raise InvalidRequest("the multipart body is cut short")

    def _content(self) -> bytes:
        end = self._held.find(self._between)
        if end >= 0:
            piece, self._held = self._held[:end], self._held[end + len(self._between) :]
            self._place = _Place.BOUNDARY
            return piece
        # The beginning of a boundary may be among the last bytes.
        sure = max(0, len(self._held) - len(self._between) + 1)
        piece, self._held = self._held[:sure], self._held[sure:]
        return piece

    def _boundary(self) -> None:
        if len(self._held) < 2:
            return
        if self._held.startswith(b"--"):
            self._place = _Place.END
        elif self._held.startswith(b"\r\n"):
            # Kept: it ends the headers, too, where there are none.
            self._place = _Place.HEADERS
        else:
            raise InvalidRequest("the multipart body has a boundary that does not end its line")

    def _headers(self) -> Part | None:
        end = self._held.find(b"\r\n\r\n")
        if end < 0 and len(self._held) <= MOST_HEADER_BYTES:
            return None
        self._parts += 1
        if not 0 <= end <= MOST_HEADER_BYTES or self._parts > MOST_PARTS:
            raise InvalidRequest("the multipart body has too many parts, or a part's headers are too long")
        headers, self._held = self._held[:end], self._held[end + 4 :]
        self._place = _Place.CONTENT
        return _read_part(headers)


def _read_part(headers: bytes) -> Part:
    disposition = _DISPOSITION.search(headers)
    told = {} if disposition is None else _parameters(disposition[1])
    if "name" not in told:
        raise InvalidRequest("a part of the multipart body has no name")
    return Part(told["name"], told.get("filename"))


def _parameters(text: bytes) -> dict[str, str]:
    return {
        found[1].decode("ascii").lower(): re.sub(rb"\\(.)", rb"\1", found[2] or found[3] or b"").decode(
            errors="replace"
        )
        for found in _PARAMETER.finditer(text)
    }
