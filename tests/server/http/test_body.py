"""Where a body ends: the same for every way it can be cut, and never elsewhere than for llhttp."""

import itertools

import httptools
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.server.http.body import Body, ChunkedBody, SizedBody
from headgate.server.http.limits import MAX_CHUNKS, HttpLimits
from headgate.server.http.refusals import Refused

LIMITS = HttpLimits(body_bytes=1000)
cuts = st.lists(st.integers(0, 400), max_size=12)


def encode(chunks: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks if chunk) + b"0\r\n\r\n"


def pieces(data: bytes, at: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(place for place in at if place < len(data))})
    return [data[start:end] for start, end in itertools.pairwise(places)]


def read(body: Body, parts: list[bytes]) -> tuple[bytes, bytes]:
    """The body and what came behind it."""
    content = rest = b""
    for part in parts:
        if body.whole:
            rest += part
        else:
            piece, rest = body.feed(part)
            content += piece
    return content, rest


@given(st.lists(st.binary(max_size=40), max_size=8), st.binary(max_size=20), cuts)
def test_a_chunked_body_is_the_same_however_it_arrives(
    chunks: list[bytes], behind: bytes, at: list[int]
) -> None:
    body = ChunkedBody(LIMITS.body_bytes)
    assert read(body, pieces(encode(chunks) + behind, at)) == (b"".join(chunks), behind)
    assert body.whole


@given(st.binary(max_size=60), st.binary(max_size=20), cuts)
def test_a_sized_body_is_the_same_however_it_arrives(content: bytes, behind: bytes, at: list[int]) -> None:
    body = SizedBody(len(content))
    assert read(body, pieces(content + behind, at)) == (content, behind)
    assert body.whole


class _Second:
    def __init__(self) -> None:
        self.body = b""
        self.complete = False

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True


mutations = st.lists(
    st.tuples(st.integers(0, 60), st.sampled_from([b"", b"\n", b"\r", b"0", b";", b" ", b"f"])), max_size=3
)


@given(st.lists(st.binary(min_size=1, max_size=9), max_size=4), mutations, cuts)
@example([b"abc"], [(1, b";x")], [])
def test_what_is_taken_for_whole_is_read_the_same_by_llhttp(
    chunks: list[bytes], changes: list[tuple[int, bytes]], at: list[int]
) -> None:
    """Stricter is fine; different is how requests are smuggled."""
    data = encode(chunks)
    for place, change in changes:
        data = data[:place] + change + data[place + 1 :]
    body = ChunkedBody(LIMITS.body_bytes)
    try:
        content, rest = read(body, pieces(data, at))
    except Refused:
        return
    if not body.whole:
        return
    second = _Second()
    message = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + data.removesuffix(rest)
    httptools.HttpRequestParser(second).feed_data(message)
    assert (second.complete, second.body) == (True, content)


@pytest.mark.parametrize(
    "data",
    [
        b"3;a=b\r\n",
        b"3 \r\n",
        b" 3\r\n",
        b"0x3\r\n",
        b"-3\r\n",
        b"+3\r\n",
        b"3\n",
        b"3\r\r",
        b"\r\n",
        b"g\r\n",
        b"000000003\r\n",
        b"3\r\nabcd",
        b"3\r\nabc\n",
        b"3\r\nabc\rx",
        b"0\r\nX: y\r\n\r\n",
        b"0\r\n\n",
        b"ffffffff\r\n",
        b"3e9\r\n",
        b"3_0\r\n",
    ],
)
def test_other_chunks_are_refused_at_the_first_wrong_byte(data: bytes) -> None:
    for parts in ([data], [data[place : place + 1] for place in range(len(data))]):
        with pytest.raises(Refused):
            read(ChunkedBody(LIMITS.body_bytes), parts)


def test_a_body_of_countless_chunks_is_refused() -> None:
    body = ChunkedBody(HttpLimits().body_bytes)
    body.feed(b"1\r\nx\r\n" * MAX_CHUNKS)
    with pytest.raises(Refused, match="chunks"):
        body.feed(b"1\r\nx\r\n")
