"""Whole runs of the newsletter: throttled, cut short, aborted, gone on with."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from apps.newsletter.newsletter_stage import Stage, open_stage, write_feeds

import headgate
from headgate.apps.newsletter.judging import Aborted
from headgate.apps.newsletter.judging_model import simulated_judge
from headgate.apps.newsletter.ledger import Run, RunState, failed_in_a_row
from headgate.apps.newsletter.smtp import NotDelivered
from headgate.apps.newsletter.verdicts import Outcome
from headgate.core.events import AttemptEnded
from headgate.planner import virtual
from headgate.planner.virtual import World

VOID = {"meta", "br", "hr", "img", "link"}


class Structure(HTMLParser):
    """Whether every tag is closed in its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.links += [value or "" for name, value in attrs if name == "href"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("seed", range(20))
def test_120_items_with_a_fifth_throttled_are_judged_for_a_fair_price(tmp_path: Path, seed: int) -> None:
    """The first newsletter lost every throttled article; with nested retries it then paid 25 calls for one.

    One item in 3,000 is throttled five times in a row, and has no further call then.
    """
    throttling = {
        "failures": {"throttled": 0.2},
        "retry_after_s": 3.0,
        "failure_latency_s": 0.2,
        "seed": seed,
    }

    async def main(world: World) -> None:
        async with open_stage(world, tmp_path, throttling, items=120) as stage:
            report, _ = await stage.run()
            run = await stage.ledger.run("r1")
            assert run is not None
            verdicts = (await stage.ledger.verdicts(run)).values()
            lost = [verdict for verdict in verdicts if verdict.outcome is not Outcome.OK]
            assert len(lost) <= 1
            assert all((one.outcome, one.attempts) == (Outcome.FALLBACK, 5) for one in lost)
            assert report.ok == 120 - len(lost)
            assert 120 < stage.provider.calls <= 1.40 * 120
            assert min(_waits_between_attempts(stage)) >= 3.0 - 0.001
        _check_files(tmp_path / "out")

    virtual.run(main, seed=seed)


def _waits_between_attempts(stage: Stage) -> Iterator[float]:
    """From the end of each attempt to the next one's start."""
    by_call: dict[tuple[str, ...], list[tuple[float, AttemptEnded]]] = {}
    for at, end in stage.ended:
        by_call.setdefault(end.request_ids, []).append((at, end))
    for ends in by_call.values():
        for (before_at, _), (after_at, after) in pairwise(ends):
            yield after_at - after.duration_ms / 1000 - before_at


def _check_files(out: Path) -> None:
    assert sorted(path.name for path in out.iterdir()) == ["r1.eml", "r1.html", "r1.txt"]
    page, text = (out / "r1.html").read_text(), (out / "r1.txt").read_text()
    structure = Structure()
    structure.feed(page)
    structure.close()
    assert structure.open == []
    assert len(structure.links) == 15
    assert all(link in text for link in structure.links)
    message = message_from_bytes((out / "r1.eml").read_bytes(), policy=policy.default)
    assert message.defects == []
    assert message.get_body(("plain",)).get_content().splitlines() == text.splitlines()  # type: ignore[union-attr]
    assert message.get_body(("html",)).get_content().splitlines() == page.splitlines()  # type: ignore[union-attr]


def test_a_wrong_model_aborts_after_three_items_and_mails_nothing(tmp_path: Path) -> None:
    """A missing inference profile once made every article a quiet IGNORE: no mail, status 200, no alarm."""
    wrong = {"outcome": {"status": 404, "code": "ResourceNotFoundException"}}

    async def main(world: World) -> None:
        # Every item may go without a verdict: only the rule about the first three is left to abort.
        async with open_stage(world, tmp_path, wrong, items=120, most_fallbacks=1.0) as stage:
            with pytest.raises(Aborted, match="the first 3 items") as caught:
                await stage.run()
            assert "simulated" in str(caught.value)
            assert "misconfigured 404 ResourceNotFoundException" in str(caught.value)
            assert "models.m.upstreams" in str(caught.value)
            assert stage.provider.calls <= 5 + 3, "those that had begun before the third was answered"
            assert world.clock.now() < 10
            run = await stage.ledger.run("r1")
            assert run is not None
            assert run.state is RunState.ABORTED
        assert not (tmp_path / "out").exists()

    virtual.run(main)


def test_bedrock_s_validation_error_for_a_wrong_model_aborts_too(tmp_path: Path) -> None:
    """Bedrock calls a wrong model a wrong request: one article cannot tell, three can."""
    wrong = {"outcome": {"status": 400, "code": "ValidationException"}}

    async def main(world: World) -> None:
        async with open_stage(world, tmp_path, wrong) as stage:
            with pytest.raises(Aborted, match="ValidationException"):
                await stage.run()

    virtual.run(main)


def test_more_fallbacks_than_the_set_share_abort(tmp_path: Path) -> None:
    """Items that answer badly are no set-up error; too many of them are still no newsletter."""
    bad = {"answers_by_pattern": {r'title": ?"A queue': '{"interest_label": "URGENT"}'}}

    async def main(world: World) -> None:
        async with open_stage(world, tmp_path, bad, most_fallbacks=0.2) as stage:
            with pytest.raises(Aborted, match=r"most_fallbacks = 0\.2.*invalid_output"):
                await stage.run()
        assert not (tmp_path / "out").exists()

    virtual.run(main)


def test_a_fallback_is_ignore_without_confidence_and_tags_and_counted_apart(tmp_path: Path) -> None:
    """The first newsletter counted fallbacks as judged, in the mail and in the bill."""
    one_bad = {"answers_by_pattern": {r'title": ?"A queue that holds 4"': "no JSON", **simulated_judge()}}

    async def main(world: World) -> None:
        async with open_stage(world, tmp_path, one_bad) as stage:
            report, _ = await stage.run()
            assert (report.ok, report.fallback, report.state) == (11, 1, RunState.PARTIAL)
            run = await stage.ledger.run("r1")
            assert run is not None
            verdicts = (await stage.ledger.verdicts(run)).values()
            [fallback] = [verdict for verdict in verdicts if verdict.outcome is Outcome.FALLBACK]
            assert (fallback.interest_label, fallback.confidence, fallback.tags) == ("IGNORE", 0.0, ())
            assert fallback.failure == "invalid_output"
            assert stage.provider.calls == 11 + 5
        async with open_stage(world, tmp_path) as stage:
            report, _ = await stage.run()
            assert (report.ok, report.fallback, report.state) == (12, 0, RunState.DELIVERED)
            assert stage.provider.calls == 1

    virtual.run(main)


def test_a_time_limit_delivers_what_is_done_and_the_run_goes_on_without_paying_twice(tmp_path: Path) -> None:
    """The first newsletter died at 900 s with every finished judgement lost."""
    slow = {"latency_s": 30.0}

    async def main(world: World) -> None:
        async with open_stage(world, tmp_path, slow, items=60) as stage:
            report, mail = await stage.run(time_limit_s=200)
            assert world.clock.now() <= 200
            assert (report.ok, report.skipped, report.fallback) == (30, 30, 0)
            assert report.state is RunState.PARTIAL
            assert mail is not None
            first = {one.item.id for one in mail.selected}
            calls = stage.provider.calls
        async with open_stage(world, tmp_path, slow, items=60, selected=60) as stage:
            report, mail = await stage.run()
            assert (report.ok, report.skipped) == (60, 0)
            assert calls + stage.provider.calls <= 60 + 5
            assert mail is not None
            assert not first & {one.item.id for one in mail.selected}
        names = {path.name for path in (tmp_path / "out").iterdir()}
        assert {"r1.txt", "r1+2.txt"} <= names

    virtual.run(main)


def test_no_wait_goes_past_the_time_limit(tmp_path: Path) -> None:
    """An upstream that asks for ten minutes does not get them from a Lambda with one. And no mail at all is no success."""
    paused = {"failures": {"throttled": 1.0}, "retry_after_s": 600.0}

    async def main(world: World) -> None:
        async with open_stage(world, tmp_path, paused) as stage:
            with pytest.raises(Aborted, match="none of the 12 items was judged within the time limit"):
                await stage.run(time_limit_s=60)
            assert world.clock.now() <= 60

    virtual.run(main)


def test_an_outage_of_half_a_minute_is_waited_for(tmp_path: Path) -> None:
    """A breaker refuses at once: taken as verdicts, its refusals would turn all items into fallbacks in a moment."""
    outage = {"outage": [(2.0, 30.0)]}

    async def main(world: World) -> None:
        async with open_stage(world, tmp_path, outage, items=60) as stage:
            report, _ = await stage.run()
            assert (report.ok, report.fallback) == (60, 0)

    virtual.run(main)


def test_a_run_that_was_cancelled_goes_on_with_the_same_items(tmp_path: Path) -> None:
    """The feeds may have moved on; the run is about what it began with."""

    async def main(world: World) -> None:
        async with open_stage(world, tmp_path, items=40) as stage:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(3.5):
                    await stage.run()
            calls = stage.provider.calls
        (tmp_path / "feeds" / "feed0.xml").write_text("gone")
        async with open_stage(
            world, tmp_path, feeds=tmp_path / "feeds" / "feeds.yaml", local_feeds=True
        ) as stage:
            report, _ = await stage.run()
            assert report.ok == report.candidates == 40
            assert calls + stage.provider.calls <= 40 + 5

    virtual.run(main)


def test_what_was_delivered_is_no_news_for_the_next_run_and_a_dry_run_delivers_nothing(
    tmp_path: Path,
) -> None:
    async def main(world: World) -> None:
        async with open_stage(world, tmp_path) as stage:
            report, mail = await stage.run("dry", dry_run=True)
            assert (report.ok, report.mailed) == (12, 0)
            assert mail is not None
            assert not (tmp_path / "out").exists()
            report, _ = await stage.run("first")
            assert (report.ok, report.mailed, report.written) == (12, 0, 9)
            report, mail = await stage.run("second")
            assert (report.candidates, mail) == (0, None)

    virtual.run(main)


def test_an_aborted_run_goes_on_once_it_is_mended(tmp_path: Path) -> None:
    """Its old fallbacks must not abort it again before they were asked about."""
    down = {"outcome": "transient"}

    async def main(world: World) -> None:
        async with open_stage(world, tmp_path, down, items=40) as stage:
            with pytest.raises(Aborted, match="transient 503"):
                await stage.run()
        async with open_stage(world, tmp_path, items=40) as stage:
            report, _ = await stage.run()
            assert (report.ok, report.state, report.why) == (40, RunState.DELIVERED, None)

    virtual.run(main)


def test_a_run_whose_feeds_all_fail_aborts_and_asks_them_again_when_it_goes_on(tmp_path: Path) -> None:
    listed = tmp_path / "feeds.yaml"
    listed.write_text("[feed0.xml]")

    async def main(world: World) -> None:
        async with open_stage(world, tmp_path, feeds=listed, local_feeds=True) as stage:
            with pytest.raises(Aborted, match=r"none of the 1 feeds could be read.*feed0\.xml"):
                await stage.run()
            write_feeds(tmp_path, 3, 1)
            report, _ = await stage.run()
            assert report.ok == 3

    virtual.run(main)


def test_an_unknown_model_is_told_before_anything_is_judged(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        async with open_stage(world, tmp_path) as stage:
            stage.newsletter._model = type(stage.newsletter._model)("nobody", 5, "apps.newsletter.model")
            with pytest.raises(headgate.UnknownModel, match="nobody"):
                await stage.run()

    virtual.run(main)


def test_a_mail_that_nobody_takes_is_a_failed_run(tmp_path: Path) -> None:
    """Its readers got nothing: whoever counts failed runs must see it."""
    nobody: dict[str, Any] = {
        "smtp_host": "127.0.0.1",
        "smtp_port": 1,
        "mail_from": "a@example.org",
        "mail_to": ("b@example.org",),
    }

    async def main(world: World) -> None:
        async with open_stage(world, tmp_path, items=3, **nobody) as stage:
            with pytest.raises(NotDelivered):
                await stage.run()
            run = await stage.ledger.run("r1")
            assert run is not None
            assert run.state is RunState.ABORTED
            assert run.why is not None
            assert "cannot be reached" in run.why

    virtual.run(main)


NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("runs", "failed"),
    [
        ("", 0),
        ("D", 0),
        ("DA", 1),
        ("DAA", 2),
        ("AAD", 0),
        ("AAP", 0),
        ("AJ", 1),
        ("DKA", 2),
        ("AYA", 2),
    ],
)
def test_how_many_runs_failed_in_a_row(runs: str, failed: int) -> None:
    """Delivered, in Part, Aborted, Judging since an hour, Killed amid judging, a drY run that stays open: oldest first."""
    states = {"D": RunState.DELIVERED, "P": RunState.PARTIAL, "A": RunState.ABORTED}
    told = [
        Run(
            id=str(number),
            started_at=NOW - timedelta(hours=1 if kind == "J" else 100 - number),
            items=(),
            state=states.get(kind, RunState.JUDGING),
            dry_run=kind == "Y",
        )
        for number, kind in enumerate(runs)
    ]
    assert failed_in_a_row(told, NOW) == failed
