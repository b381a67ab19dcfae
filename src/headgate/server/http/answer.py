"""From an application's answer to bytes: head, framing, and the rules of answers without a body. Pure."""

import functools
import re
import time
from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from headgate.server.http.head import RawHeader

_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
_STATUS_LINES: Final = {
    status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}".encode("ascii") for status in range(200, 600)
}
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f]")
_OURS: Final = frozenset({b"connection", b"content-length", b"date", b"transfer-encoding"})
_WITHOUT_BODY: Final = frozenset({204, 304})


@functools.lru_cache(maxsize=1024)
def header_value(text: str) -> bytes:
    """A name of ours as a header can carry it: no line break gets through, whatever the name is."""
    return _CONTROLS.sub("?", text).encode("latin-1", "replace")


def header_lines(headers: Iterable[RawHeader]) -> bytes:
    return b"".join(b"%b: %b\r\n" % header for header in headers)


class Dates:
    """The Date line, made anew once a second."""

    __slots__ = ("_line", "_second")

    def __init__(self) -> None:
        self._second = 0
        self._line = b""

    def line(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._line = b"date: " + formatdate(second, usegmt=True).encode("ascii")
        return self._line


def whole_answer(status: int, lines: bytes, body: bytes, *, date: bytes, closes: bool) -> bytes:
    """All of an answer whose body is there. `lines` are its headers, which must not frame it: each with its line end."""
    last = b"connection: close\r\n" if closes else b""
    return b"%b\r\n%b\r\n%bcontent-length: %d\r\n%b\r\n%b" % (
        _STATUS_LINES[status],
        date,
        lines,
        len(body),
        last,
        body,
    )


class Answer:
    """One answer, framed while it is given. The framing is ours: by length where it is known, else in chunks."""

    __slots__ = ("_chunked", "_headers", "_left", "_mute", "_status_line", "closes")

    def __init__(self, status: int, headers: Iterable[RawHeader], *, to_head: bool) -> None:
        line = _STATUS_LINES.get(status)
        if line is None:
            raise RuntimeError(f"an answer cannot have the status {status!r}")
        self._status_line = line
        self._headers = headers
        self._mute = to_head or status in _WITHOUT_BODY
        self._chunked = False
        self._left = 0
        self.closes = False

    def first(self, body: bytes, *, more: bool, date: bytes, closes: bool) -> bytes:
        """The head and the first piece, to be sent as one."""
        lines = [self._status_line, date]
        length: int | None = None
        self.closes = closes
        for header in self._headers:
            name = header[0].lower()
            if name not in _OURS:
                lines.append(b": ".join(header))
            elif name == b"content-length":
                length = int(header[1])
            elif name == b"connection" and b"close" in header[1].lower():
                self.closes = True
        if self.closes:
            lines.append(b"connection: close")
        self._frame(lines, length, None if more else len(body))
        lines.append(b"\r\n")
        head = b"\r\n".join(lines)
        # Every line end is one of ours, or somebody has put one into a header.
        if not head.count(b"\n") == head.count(b"\r") == len(lines) or b"\0" in head:
            raise RuntimeError("a header of the answer contains a line break or a NUL")
        piece = self.next(body, more=more)
        return head + piece

    def next(self, body: bytes, *, more: bool) -> bytes:
        """A further piece, with its framing."""
        if self._mute:
            return b""
        if self._chunked:
            piece = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            return piece if more else piece + b"0\r\n\r\n"
        self._left -= len(body)
        if self._left < 0 or (self._left and not more):
            raise RuntimeError("the answer's body is not as long as its Content-Length says")
        return body

    def _frame(self, lines: list[bytes], length: int | None, whole: int | None) -> None:
        """The length is the application's word, or that of a body that is there as a whole."""
        if self._mute:
            if length is not None and self._status_line != _STATUS_LINES[204]:
                lines.append(b"content-length: %d" % length)
            return
        if length is None:
            length = whole
        if length is None:
            self._chunked = True
            lines.append(b"transfer-encoding: chunked")
        else:
            self._left = length
            lines.append(b"content-length: %d" % length)
