"""From an address to text: what is a page and what is not, and whether trying again can help."""

import asyncio
import contextlib
import importlib
import os
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate.apps.bookmarks.extraction import Page, excerpt
from headgate.apps.bookmarks.mount import build
from headgate.apps.bookmarks.options import BookmarkOptions
from headgate.apps.bookmarks.reading import EXTRACT, read_page
from headgate.apps.untrusted import Parser

RULES = headgate.FetchRules()
HTML = b"""<html lang="en"><head><title>Gates</title></head><body><nav>Home About</nav><article><h1>Gates</h1>
<p>A headgate lets in as much water as the canal can carry, and no more. It is tended by a rider.</p>
<p>When it fails, the fields below are flooded within the hour, and the rider is asked why.</p></article>
<script>alert("no text")</script></body></html>"""


def read(body: bytes = b"some text", *, status: int = 200, **headers: str) -> Page:
    async def fetch(url: str, rules: headgate.FetchRules) -> headgate.Fetched:
        told: Any = {name.replace("_", "-"): value for name, value in headers.items()}
        return headgate.Fetched(url, status, told, body)

    parser = Parser(EXTRACT)
    try:
        return asyncio.run(read_page("https://a.example/", fetch, RULES, parser))
    finally:
        parser.close()


def trafilatura() -> None:
    """Skip at home where the extra cannot be imported; a CI must have it."""
    try:
        importlib.import_module("trafilatura")
    except ImportError as error:
        missing = f"the extra bookmarks cannot be imported: {error}"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(missing)


def test_plain_text_is_read_in_its_own_encoding() -> None:
    assert read("Zürich".encode("latin-1"), content_type="text/plain; charset=latin-1").excerpt == "Zürich"
    assert read("Zürich".encode(), content_type="text/plain").excerpt == "Zürich"


@pytest.mark.parametrize("charset", ["nonsense", "base64", "idna", "undefined", '"'])
def test_an_encoding_that_is_none_breaks_nothing(charset: str) -> None:
    assert "some text" in read(content_type=f"text/plain; charset={charset}").excerpt


@pytest.mark.parametrize("kind", ["image/png", "application/pdf", "video/mp4", "application/octet-stream"])
def test_what_is_no_page_is_rejected(kind: str) -> None:
    with pytest.raises(headgate.Reject, match=f"leads to {kind}"):
        read(content_type=kind)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 451, 304, 204])
def test_an_answer_that_stays_as_it_is_is_rejected(status: int) -> None:
    with pytest.raises(headgate.Reject, match=f"the site answered {status}"):
        read(status=status, content_type="text/plain")


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_an_answer_that_may_change_is_worth_another_try(status: int) -> None:
    with pytest.raises(headgate.ProviderFailure) as caught:
        read(status=status, content_type="text/plain")
    kind = "throttled" if status == 429 else "transient"
    assert (caught.value.failure.kind, caught.value.failure.status) == (kind, status)


def test_a_page_without_text_is_rejected() -> None:
    with pytest.raises(headgate.Reject, match="no text"):
        read(b" \n\t ", content_type="text/plain")


def test_of_a_long_text_the_beginning_and_the_end_are_kept() -> None:
    kept = excerpt("a" * 3000 + "b" * 5000 + "c" * 1000)
    assert kept == "a" * 3000 + "\n[…]\n" + "c" * 1000
    assert excerpt("one  \t two\n\n\n three\0") == "one two\nthree"


def test_a_page_is_its_text_without_its_furniture() -> None:
    trafilatura()
    page = read(HTML, content_type="text/html")
    assert page.title == "Gates"
    assert "lets in as much water" in page.excerpt
    assert "alert" not in page.excerpt


@pytest.mark.parametrize(
    "body", [b"", b"\xff\xfe\x00", b"<" * 100_000, b"<html>" * 2000, b"<p>" + b"&" * 50_000]
)
def test_broken_html_is_a_page_without_text_or_one_with_little(body: bytes) -> None:
    trafilatura()
    with contextlib.suppress(headgate.Reject):
        assert read(body, content_type="text/html").excerpt


def test_a_missing_extra_holds_the_bookmark_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is the operator's to mend: no bookmark dies of it."""
    (tmp_path / "trafilatura.py").write_text("raise ImportError('a part of it is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(headgate.RetryLater, match=r"pip install '\.\[bookmarks\]'"):
        read(HTML, content_type="text/html")


def test_without_the_extra_bookmarks_are_not_mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(headgate.SettingsError, match=r"apps.bookmarks needs .*\.\[bookmarks\]"):
        build(BookmarkOptions())
