"""Feeds as strangers write them, into items as plain text."""

import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest
from apps.newsletter.newsletter_stage import rss

from headgate.apps.newsletter.items import DomainCap, Item, dated_by, each_once, newest_first
from headgate.apps.newsletter.parsing import NoFeed, parse_feed, plain


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


def test_links_relative_to_the_feed_s_own_base_are_followed() -> None:
    atom = b"""<feed xmlns="http://www.w3.org/2005/Atom" xml:base="https://b.example/blog/"><entry><title>T</title>
    <link href="one"/></entry></feed>"""
    assert [item.url for item in parse_feed(atom, name="b")] == ["https://b.example/blog/one"]


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


def test_markup_in_all_its_forms_leaves_what_a_person_would_read() -> None:
    assert plain("a<!-- b --><style>c</style><img alt='1 > 2' src=x>d 1 < 2 <3", 100) == "a d 1 < 2 <3"
    assert plain("a<script>never closed <b>", 100) == "a"
    assert plain('a <a href="x>b</a> c', 100) == "a b c"


def test_emoji_and_joined_letters_stay_whole_and_nothing_turns_the_writing() -> None:
    assert plain("👩\u200d💻 🏳️\u200d🌈 می\u200cخواهم", 100) == "👩\u200d💻 🏳️\u200d🌈 می\u200cخواهم"
    assert plain("a\u202eb\u2028c", 100) == "a b c"


@pytest.mark.parametrize(
    "piece", ["<", "<a ", "<!--", "<a href='", "<?", "<script>", "<![", "&#", "</a ", "<a \"'"]
)
def test_a_hostile_text_takes_no_time(piece: str) -> None:
    """HTML parsers take hours for a megabyte of tags that never end: one feed would have stopped all others."""
    text = (piece * 1_000_000)[:1_000_000]
    feed = rss([("A", "https://a.example/", None)]).replace("About A.", f"<![CDATA[{text}]]>")
    began = time.process_time()
    assert len(parse_feed(feed.encode(), name="n")) == 1
    assert time.process_time() - began < 2


def test_a_date_in_the_future_is_none() -> None:
    """The item would lead every newsletter until 2099."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    early, ahead = (
        Item(url="https://a.example/", title="t", published=now + timedelta(hours=hours))
        for hours in (20, 30)
    )
    assert dated_by(now, early) == early
    assert dated_by(now, ahead).published is None


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
    assert "the newsletter needs its extra: pip install '.[newsletter]'" in ended.stderr
