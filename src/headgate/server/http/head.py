"""From the bytes of a request's head to its meaning. Pure, and strict: what two parsers could read differently is refused.

One expression says what a head may look like at all (see the hostile corpus in the tests); the rest is cutting.
"""

import re
from typing import Final

import msgspec

from headgate.server.http.limits import HttpLimits
from headgate.server.http.refusals import Refused, malformed

CHUNKED: Final = -1
"""The length of a body that tells its own end."""

RawHeader = tuple[bytes, bytes]

_REQUEST_LINE: Final = re.compile(rb"(?:\r\n)?([A-Z-]{1,20}) (/[!-\"$-~]*+) HTTP/1\.1\r\n")
_OTHER_VERSION: Final = re.compile(rb"[A-Z-]{1,20} [^ \r\n]++(?: HTTP/[0-9.]{1,9})?\r\n")
_FIELDS: Final = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]++:[\t -~\x80-\xff]*+\r\n)*+\r\n")
"""Names of token characters, no blank before the colon, no folded lines, no control characters: all there is to a head."""
_MALFORMED: Final = "each header must be a name, a colon and a value without control characters; lines end with CR LF and are not folded"
_HOST: Final = re.compile(rb"[A-Za-z0-9._:%\[\]-]{1,255}")
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_ONCE: Final = (
    b"host",
    b"content-length",
    b"transfer-encoding",
    b"content-encoding",
    b"expect",
    b"content-type",
)


class Head(msgspec.Struct, gc=False):
    """One request without its body. `length` is CHUNKED where the body tells its own end."""

    method: str
    path: str
    """As it was sent. Decoded, an encoded slash would look like one that separates: rules of a proxy before us would not
    be ours."""
    query: bytes
    headers: list[RawHeader]
    known: dict[bytes, bytes]
    """By name; of a repeated header the last."""
    length: int
    keep_alive: bool
    expects_continue: bool


def read_head(data: bytes, limits: HttpLimits) -> Head:
    """`data` ends with the empty line. Raises Refused."""
    # In one function: each more would be a call for every request.
    match = _REQUEST_LINE.match(data)
    if match is None:
        raise malformed(_what_is_wrong(data))
    method, target = match.groups()
    begin = match.end()
    if _FIELDS.fullmatch(data, begin) is None:
        raise malformed(_MALFORMED)
    headers: list[RawHeader] = []
    if len(data) > begin + 2:
        for line in data[begin:-4].split(b"\r\n"):
            name, _, value = line.partition(b":")
            headers.append((name.lower(), value.strip(b" \t")))
    if len(headers) > limits.headers:
        raise Refused(431, "invalid_request", f"a request may have at most {limits.headers} headers")
    known = dict(headers)
    if len(known) != len(headers):
        _check_repeats(headers, known)
    if _HOST.fullmatch(known.get(b"host", b"")) is None:
        raise malformed("a request needs exactly one valid Host header")
    raw_path, _, query = target.partition(b"?")
    path = raw_path.decode("ascii")
    length = _body_length(known)
    most_bytes = limits.larger_bodies.get(path, limits.body_bytes)
    if length > most_bytes:
        raise too_large(most_bytes)
    connection = known.get(b"connection")
    return Head(
        method.decode("ascii"),
        path,
        query,
        headers,
        known,
        length,
        connection is None or b"close" not in connection.lower(),
        b"expect" in known,
    )


def _check_repeats(headers: list[RawHeader], known: dict[bytes, bytes]) -> None:
    names = [name for name, _ in headers]
    for name in _ONCE:
        if names.count(name) > 1:
            raise malformed(f"the header {name.decode('ascii')} stands there more than once")
    if b"connection" in known:
        known[b"connection"] = b",".join(value for name, value in headers if name == b"connection")


def _body_length(known: dict[bytes, bytes]) -> int:
    if known.get(b"expect", b"100-continue").lower() != b"100-continue":
        raise Refused(417, "invalid_request", "the only expectation known here is 100-continue")
    if known.get(b"content-encoding", b"identity").lower() != b"identity":
        raise Refused(415, "unsupported_media_type", "send the body without Content-Encoding")
    transfer, length = known.get(b"transfer-encoding"), known.get(b"content-length")
    if transfer is not None:
        if transfer != b"chunked" or length is not None:
            raise malformed("use either Content-Length or Transfer-Encoding: chunked")
        return CHUNKED
    if length is None:
        return 0
    if _LENGTH.fullmatch(length) is None:
        raise malformed("Content-Length must be a plain number")
    return int(length)


def too_large(most_bytes: int) -> Refused:
    return Refused(413, "payload_too_large", f"a body may have at most {most_bytes} bytes")


def _what_is_wrong(data: bytes) -> str:
    if _OTHER_VERSION.match(data):
        return "this server speaks HTTP/1.1 and takes paths that begin with a slash"
    return "the first line is not one of an HTTP request"
