"""Asking feeds over real HTTP: politely, and whatever they answer."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from apps.newsletter.newsletter_stage import rss
from providers.stubs.scripted import Reply, ScriptedServer

import headgate
from headgate.apps.newsletter.collecting import Collected, Collector
from headgate.apps.newsletter.feed_list import Feed
from headgate.apps.newsletter.ledger import Ledger
from headgate.apps.newsletter.parsing import parse_feed

FEED = rss([("A", "https://a.example/1", None)]).encode()


def _collect(
    folder: Path,
    act: Callable[[Collector], Awaitable[list[Collected]]],
    *,
    spacing_s: float = 0.0,
    private: bool = True,
) -> list[Collected]:
    async def main() -> list[Collected]:
        async with headgate.open({"data_dir": str(folder)}, env={}) as gateway:
            return await act(Collector(Ledger(gateway), private=private, spacing_s=spacing_s))

    return asyncio.run(main())


def test_an_unchanged_feed_is_asked_with_its_marks_and_keeps_its_items(tmp_path: Path) -> None:
    """304 sends nothing; what the feed said last time still counts, or a failed run would lose it."""
    marks = {"ETag": 'W/"7"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}

    async def act(collector: Collector) -> list[Collected]:
        async with ScriptedServer(Reply(FEED, headers=marks), Reply(status=304)) as server:
            feeds = [Feed(url=f"{server.url}/feed")]
            first = await collector.collect(feeds, within_s=None)
            second = await collector.collect(feeds, within_s=None)
            asked = server.requests
        assert "if-none-match" not in asked[0].headers
        assert asked[1].headers["if-none-match"] == 'W/"7"'
        assert asked[1].headers["if-modified-since"] == marks["Last-Modified"]
        assert asked[1].headers["user-agent"].startswith("headgate-newsletter/")
        return [*first, *second]

    first, second = _collect(tmp_path, act)
    assert (first.report.unchanged, second.report.unchanged) == (False, True)
    assert list(first.items) == list(second.items)
    assert len(first.items) == 1


def test_one_bad_feed_never_stops_the_others(tmp_path: Path) -> None:
    (tmp_path / "good.xml").write_bytes(FEED)
    (tmp_path / "bad.xml").write_text("<rss")

    async def act(collector: Collector) -> list[Collected]:
        async with ScriptedServer(Reply(b"gone", status=500)) as server:
            feeds = [
                Feed(url=f"{server.url}/500"),
                Feed(url="http://127.0.0.1:1/refused"),
                Feed(url="http://no-such-host.invalid/"),
                Feed(path=tmp_path / "bad.xml"),
                Feed(path=tmp_path / "missing.xml"),
                Feed(path=tmp_path / "good.xml"),
            ]
            return await collector.collect(feeds, within_s=None)

    collected = _collect(tmp_path, act)
    assert [one.report.error is None for one in collected] == [False] * 5 + [True]
    assert "status 500" in (collected[0].report.error or "")
    assert len(collected[5].items) == 1


def test_private_addresses_are_refused_unless_allowed(tmp_path: Path) -> None:
    """A list of feeds is other people's addresses."""

    async def act(collector: Collector) -> list[Collected]:
        async with ScriptedServer(Reply(FEED)) as server:
            collected = await collector.collect([Feed(url=f"{server.url}/feed")], within_s=None)
            assert server.connections == 0
            return collected

    [one] = _collect(tmp_path, act, private=False)
    assert "rejected" in (one.report.error or "")


def test_feeds_of_one_host_are_spaced(tmp_path: Path) -> None:
    async def act(collector: Collector) -> list[Collected]:
        async with ScriptedServer(Reply(FEED)) as server:
            feeds = [Feed(url=f"{server.url}/{number}") for number in range(3)]
            began = time.monotonic()
            collected = await collector.collect(feeds, within_s=None)
            assert time.monotonic() - began >= 0.2
            return collected

    collected = _collect(tmp_path, act, spacing_s=0.1)
    assert [one.report.error for one in collected] == [None, None, None]


def test_a_feed_without_a_turn_in_time_says_so(tmp_path: Path) -> None:
    async def act(collector: Collector) -> list[Collected]:
        async with ScriptedServer(Reply(FEED)) as server:
            feeds = [Feed(url=f"{server.url}/{number}") for number in range(2)]
            return await collector.collect(feeds, within_s=1.5)

    parse_feed(FEED, name="n")  # The first one takes its time: the parser is loaded.
    collected = _collect(tmp_path, act, spacing_s=3600.0)
    assert [one.report.error for one in collected] == [None, "there was no time left for it"]
