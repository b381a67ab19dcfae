"""`multipart/form-data`, however it arrives: cut anywhere, said in any way, wrong in any way."""

import pytest

from headgate.core.errors import InvalidRequest
from headgate.server.multipart import Multipart, Part, read_boundary

BODY = (
    b"a preamble\r\n--x\r\n"
    b'Content-Disposition: form-data; name="purpose"\r\n\r\n'
    b"batch\r\n"
    b"--x\r\n"
    b'content-type: text/plain\r\nContent-Disposition: form-data; name="file"; filename="a \\"b\\".jsonl"\r\n\r\n'
    b"one\r\n--not a boundary\r\n--two\r\n"
    b"\r\n--x--\r\nan epilogue"
)


def _read(boundary: bytes, *pieces: bytes) -> dict[Part, bytes]:
    multipart = Multipart(boundary)
    found: dict[Part, bytes] = {}
    last = Part("", None)
    for piece in pieces:
        for told in multipart.feed(piece):
            if isinstance(told, Part):
                last = told
                found[last] = b""
            else:
                found[last] += told
    multipart.close()
    return found


EXPECTED = {
    Part("purpose", None): b"batch",
    Part("file", 'a "b".jsonl'): b"one\r\n--not a boundary\r\n--two\r\n",
}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
def test_pieces_of_any_size_say_the_same(size: int) -> None:
    pieces = [BODY[at : at + size] for at in range(0, len(BODY), size)]
    assert _read(b"x", *pieces) == EXPECTED


def test_nothing_is_gathered() -> None:
    """What is known to be content is handed on at once: a file of any size takes a few bytes of memory."""
    multipart = Multipart(b"x")
    list(multipart.feed(b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\n'))
    for _ in range(10):
        told = b"".join(piece for piece in multipart.feed(b"y" * 1000) if isinstance(piece, bytes))
        assert len(told) >= 990
        assert len(multipart._held) < 10


def test_an_empty_part_is_a_part() -> None:
    body = b"--x\r\nContent-Disposition: form-data; name=file\r\n\r\n\r\n--x--"
    assert _read(b"x", body) == {Part("file", None): b""}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--x",
        b"--x\r\n",
        BODY[:-20],
        b"--xy\r\n",
        b"--x\r\n\r\ncontent\r\n--x--",
        b"--x\r\nContent-Disposition: form-data\r\n\r\n\r\n--x--",
        b"--x\r\n" + b"a: b\r\n" * 2000,
        b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n' * 40,
    ],
)
def test_what_is_no_multipart_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        _read(b"x", body)


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        ("multipart/form-data; boundary=abc", b"abc"),
        ('Multipart/Form-Data; boundary="a b"', b"a b"),
        ("multipart/form-data; charset=utf-8; boundary=abc; x=y", b"abc"),
    ],
)
def test_the_boundary_is_in_the_content_type(content_type: str, boundary: bytes) -> None:
    assert read_boundary(content_type) == boundary


@pytest.mark.parametrize(
    "content_type",
    ["", "application/json", "multipart/form-data", f"multipart/form-data; boundary={'x' * 71}"],
)
def test_another_content_type_is_refused(content_type: str) -> None:
    with pytest.raises(InvalidRequest):
        read_boundary(content_type)
