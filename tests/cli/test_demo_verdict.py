"""The demo's verdict must be able to fail: whatever is lost, doubled or mixed up is found, and what may happen is let pass."""

from typing import Any, get_type_hints

import msgspec
import pytest

from headgate.cli.demo.books import Books, Counts, End, Item, Kind
from headgate.cli.demo.verdict import Verdict, judge, percentile
from headgate.core.job import Job

ANSWER = "simulated answer to: {} [0badcafe]"


def _item(**fields: object) -> Item:
    """A question that was asked, answered and done with."""
    usual = {"name": "q", "kind": Kind.CALL, "requests": 1, "ends": [End.ANSWERED]}
    return Item(**{**usual, **fields})  # type: ignore[arg-type]


def _judge(item: Item, *, arrived: int = 1, answered: int = 1, at_fallback: int = 0) -> Verdict:
    primary, fallback = Counts(), Counts()
    primary.arrived[item.name], primary.answered[item.name] = arrived, answered
    fallback.arrived[item.name] = fallback.answered[item.name] = at_fallback
    return judge(Books({item.name: item}), [primary, fallback], max_attempts=3)


@pytest.mark.parametrize(
    "item",
    [
        _item(),
        _item(kind=Kind.STREAM),
        _item(kind=Kind.JOB),
        _item(kind=Kind.TWIN, askers=3, ends=[End.ANSWERED] * 3, answer_ids={"a"}),
        _item(ends=[End.FAILED]),
        _item(ends=[End.REFUSED]),
    ],
)
def test_what_ended_once_for_each_asker_passes(item: Item) -> None:
    assert _judge(item).holds


@pytest.mark.parametrize(
    "item",
    [
        _item(ends=[]),
        _item(kind=Kind.JOB, ends=[]),
        _item(kind=Kind.LINE, ends=[]),
        _item(kind=Kind.TWIN, askers=3, ends=[End.ANSWERED] * 2),
        _item(ends=[End.UNHEARD]),
    ],
)
def test_what_has_no_end_is_lost(item: Item) -> None:
    verdict = _judge(item)
    assert len(verdict.lost) == 1
    assert not verdict.holds


@pytest.mark.parametrize(
    "item",
    [
        _item(ends=[End.ANSWERED] * 2),
        _item(kind=Kind.JOB, ends=[End.ANSWERED] * 2),
        _item(kind=Kind.TWIN, askers=2, ends=[End.ANSWERED] * 2, answer_ids={"a", "b"}),
    ],
)
def test_what_ended_or_was_answered_twice_is_doubled(item: Item) -> None:
    verdict = _judge(item)
    assert len(verdict.doubled) == 1
    assert not verdict.holds


def test_work_done_twice_is_seen_at_the_providers_even_if_the_caller_saw_one_answer() -> None:
    assert len(_judge(_item(), arrived=2, answered=2).doubled) == 1
    assert len(_judge(_item(), at_fallback=1).doubled) == 1


def test_a_dead_worker_may_have_taken_one_answer_along_and_no_more() -> None:
    once_crashed = _item(kind=Kind.JOB, crashes=1)
    assert _judge(once_crashed, arrived=2, answered=2).holds
    assert not _judge(once_crashed, arrived=3, answered=3).holds


@pytest.mark.parametrize(
    ("item", "arrived"),
    [
        (_item(wrong_answers=1), 1),
        (_item(), 4),
        (_item(kind=Kind.JOB, ends=[End.DEAD], reason="exhausted"), 1),
    ],
)
def test_wrong_answers_needless_attempts_and_unforeseen_dead_letters_break_a_promise(
    item: Item, arrived: int
) -> None:
    verdict = _judge(item, arrived=arrived)
    assert len(verdict.broken) == 1
    assert not verdict.holds


@pytest.mark.parametrize(("free", "holds"), [(1, True), (0, False)])
def test_what_is_throttled_or_met_by_the_outage_is_no_needless_attempt(free: int, holds: bool) -> None:
    """Only the deadline bounds those."""
    item, primary = _item(), Counts()
    primary.arrived["q"], primary.answered["q"], primary.free["q"] = 4, 1, free
    assert judge(Books({"q": item}), [primary], max_attempts=3).holds is holds


@pytest.mark.parametrize(("wait_s", "holds"), [(0.0, False), (1.0, True), (60.0, True), (61.0, False)])
def test_a_refusal_promises_a_wait_of_1_to_60_seconds(wait_s: float, holds: bool) -> None:
    assert judge(Books(waits_s=[wait_s]), [Counts()], max_attempts=3).holds is holds


@pytest.mark.parametrize(
    ("end", "reason", "holds"),
    [(End.DEAD, "poison", True), (End.DEAD, "exhausted", False), (End.ANSWERED, None, False)],
)
def test_the_poison_job_must_be_set_aside_as_poison(end: End, reason: str | None, holds: bool) -> None:
    item = _item(name="poison", kind=Kind.JOB, ends=[end], reason=reason)
    books = Books({"poison": item}, poison="poison")
    assert judge(books, [Counts()], max_attempts=3).holds is holds


def test_a_question_nobody_asked_is_found() -> None:
    stranger = Counts()
    stranger.arrived["who?"] = 1
    assert not judge(Books(), [stranger], max_attempts=3).holds


def test_an_answer_to_another_question_is_noticed() -> None:
    """`job 1` is the beginning of `job 12`."""
    item = _item(name="job 1", ends=[])
    item.answer(ANSWER.format("job 12"), "a")
    assert item.wrong_answers == 1
    item.answer(ANSWER.format("job 1"), "a")
    assert item.wrong_answers == 1


def _job(question: str = "q", *, state: str = "completed", completions: int = 1, answer: str = "q") -> Job:
    fields: dict[str, Any] = dict.fromkeys(Job.__struct_fields__)
    moment = "2026-01-01T00:00:00Z"
    fields |= {name: 0 for name, kind in get_type_hints(Job).items() if kind in {int, float, bool}}
    fields |= dict.fromkeys(("created_at", "run_at", "expires_at"), moment)
    fields |= {
        "id": "job_1",
        "task": "chat",
        "tenant": "local",
        "lane": "batch",
        "model": "articles",
        "hold": False,
    }
    fields |= {"state": state, "input": {"messages": [{"role": "user", "content": question}]}}
    fields |= {"result": {"choices": [{"message": {"content": ANSWER.format(answer)}}]}}
    fields |= {"history": [{"outcome": "completed", "at": moment}] * completions}
    return msgspec.convert(fields, Job)


@pytest.mark.parametrize(
    ("jobs", "lost", "doubled", "broken"),
    [
        ([_job()], 0, 0, 0),
        ([], 1, 0, 0),
        ([_job(state="running")], 1, 0, 0),
        ([_job(), _job()], 0, 1, 0),
        ([_job(completions=2)], 0, 1, 0),
        ([_job(answer="another")], 0, 0, 1),
    ],
)
def test_what_the_store_says_of_a_job_goes_into_the_books(
    jobs: list[Job], lost: int, doubled: int, broken: int
) -> None:
    """Looked at twice: each look takes the place of the one before."""
    books = Books()
    books.open("q", Kind.JOB)
    for _ in range(2):
        books.see(jobs)
    verdict = judge(books, [Counts()], max_attempts=3)
    assert (len(verdict.lost), len(verdict.doubled), len(verdict.broken)) == (lost, doubled, broken)


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.99, 99), (1.0, 100)])
def test_a_percentile_is_one_of_the_values(share: float, value: float) -> None:
    assert percentile(range(1, 101), share) == value
    assert percentile([], share) == 0
