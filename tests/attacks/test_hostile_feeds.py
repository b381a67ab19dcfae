"""Feeds that take a parser minutes, or lead it to files of this machine, among feeds that do not."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from apps.bookmarks.stage import a_site, answer
from apps.newsletter.newsletter_stage import rss

import headgate
from headgate.apps.newsletter.collecting import Collected, Collector
from headgate.apps.newsletter.feed_list import Feed
from headgate.apps.newsletter.ledger import Ledger
from headgate.apps.newsletter.parsing import NoFeed, parse_feed

GOOD = rss([("A", "https://a.example/1", None)]).encode()


def collect(folder: Path, pages: Sequence[bytes], within_s: float) -> list[Collected]:
    """Each of them on a server of its own: those are asked side by side."""

    async def main() -> list[Collected]:
        async with AsyncExitStack() as stack:
            feeds = []
            for number, page in enumerate(pages):
                site = await stack.enter_async_context(a_site(feed=answer(page, kind="application/xml")))
                host = "localhost" if number % 2 else "127.0.0.1"
                feeds.append(Feed(url=f"http://{host}:{site.port}/feed"))
            gateway = await stack.enter_async_context(headgate.open({"data_dir": str(folder)}, env={}))
            collector = Collector(Ledger(gateway), private=True, spacing_s=0)
            return await collector.collect(feeds, within_s=within_s)

    return asyncio.run(main())


TAGS = b"<rss version='2.0'><channel>" + b"<a>" * 1_700_000


def test_feeds_that_take_too_much_are_told_about_and_the_others_are_read(tmp_path: Path) -> None:
    entities = b"<rss version='2.0'><channel><item><title>" + b"&amp;" * 900_000
    punycode = b"<?xml version='1.0' encoding='punycode'?><rss><channel>-" + b"a8z" * 170_000
    tags, good, *_, last = collect(tmp_path, [TAGS, GOOD, entities, punycode, GOOD], within_s=120)
    assert tags.report.error in {"parsing it takes too much memory", "parsing it takes more than 10 s"}
    assert (len(good.items), len(last.items)) == (1, 1)


def test_a_run_whose_time_is_over_does_not_wait_for_a_parser(tmp_path: Path) -> None:
    [endless] = collect(tmp_path, [TAGS], within_s=1.5)
    assert endless.report.error == "there was no time left for it"


def test_a_feed_that_is_the_path_of_a_file_is_no_feed(tmp_path: Path) -> None:
    """feedparser opens what it is given if it can: `/dev/zero` would have filled the memory."""
    path = tmp_path / "secret.xml"
    path.write_bytes(GOOD)
    with pytest.raises(NoFeed, match="no RSS or Atom"):
        parse_feed(str(path).encode(), name="n")


@pytest.mark.parametrize("encoding", ["punycode", "idna", "unicode_escape", "utf-7"])
def test_a_feed_is_never_read_in_what_is_no_encoding(encoding: str) -> None:
    feed = b"<?xml version='1.0' encoding='%b'?>" % encoding.encode() + GOOD.partition(b"?>")[2].replace(
        b"<title>A</title>", "<title>Zürich</title>".encode()
    )
    assert [item.title for item in parse_feed(feed, name="n")] == ["Zürich"]
