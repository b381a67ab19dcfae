"""Feeds as strangers write them, into items as plain text."""

import subprocess
import sys
from datetime import UTC, datetime

import pytest
from apps.newsletter.newsletter_stage import rss

from headgate.apps.newsletter.items import DomainCap, Item, each_once, newest_first
from headgate.apps.newsletter.parsing import MISSING_EXTRA, NoFeed, parse_feed, plain


def test_rss_and_atom_become_items() -> None:
    date = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    [item] = parse_feed(rss([("A &amp; B", "https://a.example/X?utm_medium=rss", date)]).encode(), name="n")
    assert item == Item(
        url="https://a.example/X", title="A & B", description="About A & B.", source="A feed", published=date
    )
    atom = b"""<feed xmlns="http://www.w3.org/2005/Atom"><entry><title>T</title><link href="https://b.example/"/>
    <summary type="html">&lt;p&gt;One&lt;/p&gt;&lt;script&gt;bad()&lt;/script&gt;&lt;p&gt;two&lt;/p&gt;</summary></entry></feed>"""
    [item] = parse_feed(atom, name="b.example")
    assert (item.description, item.source, item.published) == ("One two", "b.example", None)


@pytest.mark.parametrize("content", [b"", b"<html><body>Not found</body></html>", b"\xff\xfe\x00", b"{}"])
def test_what_is_no_feed_says_so(content: bytes) -> None:
    with pytest.raises(NoFeed):
        parse_feed(content, name="n")


def test_items_without_an_address_are_left_out() -> None:
    feed = rss([("A", "javascript:alert(1)", None), ("B", "https://b.example/", None)])
    assert [item.title for item in parse_feed(feed.encode(), name="n")] == ["B"]


def test_text_is_one_line_without_tags_and_control_characters() -> None:
    assert plain("<p>a</p>\n\x1b[2J<b>b</b> &lt;c&gt;", 100) == "a [2J b <c>"
    assert plain("word " * 100, 20) == "word word word…"


def test_of_one_page_told_twice_the_newest_stays() -> None:
    old, new = (
        Item(url=f"{scheme}://a.example/x", title=scheme, published=datetime(2026, 1, day, tzinfo=UTC))
        for scheme, day in (("http", 1), ("https", 2))
    )
    undated = Item(url="https://b.example/", title="undated")
    assert [item.title for item in each_once(newest_first([undated, old, new]))] == ["https", "undated"]


def test_a_domain_gets_no_more_than_its_share() -> None:
    items = [
        Item(url=f"https://{host}.example/{n}", title="t") for host in ("a", "www.a", "b") for n in range(3)
    ]
    cap = DomainCap(2)
    assert [item.url for item in items if cap.admits(item)] == [
        "https://a.example/0",
        "https://a.example/1",
        "https://b.example/0",
        "https://b.example/1",
    ]


def test_without_feedparser_the_missing_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['feedparser'] = None\n"
        "from headgate.apps.newsletter.options import NewsletterOptions\n"
        "from headgate.apps.newsletter.run import Material\n"
        "Material.read(NewsletterOptions())"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert MISSING_EXTRA in ended.stderr
