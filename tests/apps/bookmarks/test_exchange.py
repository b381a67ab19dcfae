"""Files of bookmarks: what browsers write is read, what is written is read back, and nothing in them is obeyed."""

from typing import Any

import pytest

import headgate
from headgate.apps.bookmarks.exchange import Imported, netscape, read_file

FIREFOX = """<!DOCTYPE NETSCAPE-Bookmark-file-1>
<!-- This is an automatically generated file. -->
<META HTTP-EQUIV="Content-Type" CONTENT="text/html; charset=UTF-8">
<TITLE>Bookmarks</TITLE>
<DL><p>
    <DT><H3 ADD_DATE="1">Folder</H3>
    <DL><p>
        <DT><A HREF="https://a.example/Path?x=1&amp;y=2" ADD_DATE="1" TAGS="one,two">A &amp; <b>b</b></A>
        <DT><A HREF="HTTPS://A.example/Path?x=1&y=2">The same again</A>
        <DT><A HREF="javascript:alert(1)">A bookmarklet</A>
        <DT><A HREF="place:sort=8">A folder of the browser's own</A>
        <DT><A>No address</A>
        <DT><A HREF="https://b.example/">
    </DL><p>
</DL>"""


def shown(**changes: Any) -> dict[str, Any]:
    return {
        "url": "https://a.example/",
        "title": "A",
        "tags": [],
        "summary": None,
        "created_at": "2026-01-31T12:00:00Z",
        **changes,
    }


def test_a_browser_s_file_is_read() -> None:
    found, left_out = read_file(FIREFOX.encode())
    assert found == [
        Imported(url="https://a.example/Path?x=1&y=2", title="A & b", tags=("one", "two")),
        Imported(url="https://b.example/", title=None),
    ]
    assert left_out == 2


@pytest.mark.parametrize(
    "text",
    [
        '[{"url": "https://a.example/", "title": "A", "tags": ["t"], "id": "bm_1"}]',
        ' \ufeff{"object": "list", "data": [{"url": "https://a.example/", "title": "A", "tags": ["t"]}]}',
    ],
)
def test_json_is_read(text: str) -> None:
    assert read_file(text.encode()) == ([Imported(url="https://a.example/", title="A", tags=("t",))], 0)


@pytest.mark.parametrize(
    "text", ["[1]", "{}", "[", '{"data": 7}', '[{"title": "no address"}]', "[" * 200_000]
)
def test_json_that_is_no_list_of_bookmarks_is_refused(text: str) -> None:
    with pytest.raises(headgate.InvalidRequest, match="no list of bookmarks"):
        read_file(text.encode())


@pytest.mark.parametrize(
    "content", [b"", b"<html><<<>>", b"\x7fELF\x00\xff", b"url,title\nhttps://a.example/,A"]
)
def test_a_file_without_a_sign_of_bookmarks_is_told_and_not_taken_for_an_empty_list(content: bytes) -> None:
    """Somebody chose the wrong file, and would believe that all is imported."""
    with pytest.raises(headgate.InvalidRequest, match="no list of bookmarks"):
        read_file(content)


def test_an_empty_list_is_one() -> None:
    assert read_file(b"[]") == read_file("".join(netscape([])).encode()) == ([], 0)


def test_a_broken_file_gives_what_can_be_read_of_it() -> None:
    text = '<DL><DT><A HREF="https://a.example/1"TAGS=x,,y>One<DT><A HREF=https://a.example/2>Two <b>b</a><A HREF="https://a.ex'
    assert [(one.url, one.title, one.tags) for one in read_file(text.encode())[0]] == [
        ("https://a.example/1", "One", ("x", "y")),
        ("https://a.example/2", "Two b", ()),
    ]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_a_file_may_be_spelled_in_utf_16(encoding: str) -> None:
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    content = f'{mark}<A HREF="https://a.example/">Ünï</A>'.encode(encoding)
    assert [one.title for one in read_file(content)[0]] == ["Ünï"]


def test_what_is_written_is_read_back_whatever_it_says() -> None:
    hostile = [
        shown(title='"><script>alert(1)</script>', tags=["a,b", '"x"']),
        shown(
            url="https://b.example/?a=1&b='", title=None, summary="</DL><A HREF='https://evil.example/'>x</A>"
        ),
    ]
    text = "".join(netscape(hostile))
    assert "<script>" not in text
    found, left_out = read_file(text.encode())
    assert [(one.url, one.title, one.tags) for one in found] == [
        ("https://a.example/", '"><script>alert(1)</script>', ("a b", '"x"')),
        ("https://b.example/?a=1&b='", "https://b.example/?a=1&b='", ()),
    ]
    assert left_out == 0
