"""Dead letters: replayed as a new generation, discarded, and never two live jobs for the same work."""

import asyncio
from typing import Any

import pytest
from contracts.job_stage import (
    EVER,
    NOW,
    REJECTED,
    TRANSIENT,
    a_job,
    a_key,
    end,
    exhausted,
    found,
    picture,
    running,
    state_of,
    suspect,
    take,
    take_suspects,
)
from stores_under_test import on_each_store

from headgate.core.call import Lane
from headgate.core.errors import KeyMismatch
from headgate.core.job import Accepted, Claim, Edit, JobState, Settled
from headgate.core.job_rules import Completed, Crashed
from headgate.core.ports.jobs import JobFilter
from headgate.core.ports.store import Store

LATER = NOW + 500.0


async def replay(store: Store, *job_ids: str, **changes: Any) -> list[str]:
    asked: dict[str, Any] = {"by": "operator", "now": LATER, "expires_after_s": 1000.0, **changes}
    return [one.id for one in await store.replay(job_ids, **asked)]


async def poisoned(store: Store, job_id: str, **changes: Any) -> Claim:
    await suspect(store, job_id, **changes)
    (claim,) = await take_suspects(store)
    assert await end(store, claim, Crashed()) is Settled.APPLIED
    return claim


@on_each_store
async def test_a_replayed_job_starts_afresh_with_all_its_attempts(store: Store) -> None:
    """Somebody mended the cause: what counted against the job is forgotten, what happened is not."""
    claim = await poisoned(store, "j", priority=2)
    before = await found(store, "j")

    assert await replay(store, "j") == ["j"]
    job = await found(store, "j")

    assert (job.state, job.generation) == (JobState.PENDING, 2)
    assert (job.attempts, job.crashes, job.deferrals, job.revivals) == (0, 0, 0, 0)
    assert (job.error, job.error_class, job.reason, job.finished_at, job.started_at) == (None,) * 5
    assert (job.run_at.timestamp(), job.expires_at.timestamp()) == (LATER, LATER + 1000.0)
    assert job.history[:-1] == before.history
    replayed = job.history[-1]
    assert (replayed.outcome, replayed.by, replayed.generation) == ("replayed", "operator", 2)
    assert replayed.at.timestamp() == LATER
    (again,) = await take(store, claim.model)
    assert (again.attempts, again.generation, again.input) == (1, 2, claim.input)


@on_each_store
async def test_a_replay_never_hands_out_an_old_lease(store: Store) -> None:
    """The worker of the first life may still be around; its lease must stay wrong for ever."""
    claim = await exhausted(store, "j")
    await replay(store, "j")
    (again,) = await take(store, claim.model)

    assert again.lease > claim.lease
    assert await end(store, claim, Completed(b'"from the grave"')) is Settled.STALE


@on_each_store
async def test_a_replayed_job_stands_in_line_by_its_lane_and_priority(store: Store) -> None:
    """Replays go by the same rule as submissions: not ahead of everybody, not behind."""
    lines: dict[str, dict[str, Any]] = {
        "late": {"priority": 9},
        "early": {"priority": 0},
        "first": {"priority": 5, "lane": Lane.INTERACTIVE},
    }
    for name, changes in lines.items():
        await exhausted(store, name, model="m", **changes)
    await store.accept([a_job("between", model="m", priority=5, run_at=LATER)], now=LATER)
    await replay(store, "late", "early", "first")

    assert [claim.id for claim in await take(store, "m")] == ["first", "early", "between", "late"]


@on_each_store
async def test_a_replay_without_a_new_input_keeps_the_steps(store: Store) -> None:
    """What the earlier run finished need not be paid for again."""
    claim = await running(store, "j", max_attempts=1)
    await store.save_step("j", claim.lease, name="fetch", result=b"page", now=NOW)
    await end(store, claim, TRANSIENT)
    await replay(store, "j")

    assert await store.steps("j") == {"fetch": b"page"}


@on_each_store
async def test_a_replay_with_a_new_input_keeps_the_old_one_in_the_history(store: Store) -> None:
    """And drops the steps: they were made from the old input."""
    claim = await running(store, "j", max_attempts=1, input=b'{"text":"wrong \xe2\x80\xa8 text"}')
    await store.save_step("j", claim.lease, name="fetch", result=b"page", now=NOW)
    await end(store, claim, REJECTED)

    assert await replay(store, "j", edit=Edit(b'{"text":"right"}')) == ["j"]
    job = await found(store, "j")
    (again,) = await take(store, claim.model)

    assert job.input == {"text": "right"}
    assert again.input == b'{"text":"right"}'
    assert job.history[-1].input == {"text": "wrong \u2028 text"}
    assert await store.steps("j") == {}


@on_each_store
async def test_an_input_written_over_several_lines_survives_in_the_history(store: Store) -> None:
    """People edit inputs in editors, which like to break lines; the history must stay readable."""
    claim = await running(store, "j", max_attempts=1, input=b'{\r\n  "text": "one",\n  "n": 1\n}\n')
    await end(store, claim, REJECTED)
    await replay(store, "j", edit=Edit(b'{\n"text": "two"\n}'))
    (claim,) = await take(store, claim.model)
    await end(store, claim, REJECTED)
    await replay(store, "j", edit=Edit(b"3"))

    inputs = [entry.input for entry in (await found(store, "j")).history if entry.outcome == "replayed"]
    assert inputs == [{"text": "one", "n": 1}, {"text": "two"}]


@on_each_store
async def test_a_job_can_be_replayed_again_and_again(store: Store) -> None:
    """Each generation is told apart in the history, whatever became of it."""
    claim = await exhausted(store, "j")
    for generation in (2, 3, 4):
        await replay(store, "j")
        (claim,) = await take(store, claim.model)
        assert claim.generation == generation
        await end(store, claim, REJECTED)

    story = [(entry.outcome, entry.generation) for entry in (await found(store, "j")).history]
    expected = [("failed", 1)]
    for generation in (2, 3, 4):
        expected += [("replayed", generation), ("failed", generation)]
    assert story == expected


@on_each_store
async def test_only_dead_letters_are_replayed(store: Store) -> None:
    """A job that still runs, or has its result, must not run a second time by a slip of the hand."""
    await store.accept([a_job("ready"), a_job("later", run_at=NOW + 50)], now=NOW)
    await running(store, "running")
    await end(store, await running(store, "done"), Completed(b"1"))
    await store.accept([a_job("stopped")], now=NOW)
    await store.cancel("stopped", now=NOW)
    before = await picture(store)

    names = ["ready", "later", "running", "done", "stopped", "nobody"]
    assert await replay(store, *names, edit=Edit(b"2")) == []
    assert await store.discard(names, by="me", now=LATER) == []
    assert await picture(store) == before


@on_each_store
async def test_another_tenants_dead_letter_is_neither_replayed_nor_discarded(store: Store) -> None:
    """Not even by somebody who knows its id."""
    await exhausted(store, "theirs", tenant="acme")
    await exhausted(store, "ours")
    before = await found(store, "theirs")

    assert await replay(store, "theirs", "ours", tenant="local") == ["ours"]
    assert await store.discard(["theirs"], by="me", now=LATER, tenant="local") == []
    assert await found(store, "theirs") == before
    assert await replay(store, "theirs", tenant="acme") == ["theirs"]


@on_each_store
async def test_a_list_that_names_a_job_twice_replays_it_once(store: Store) -> None:
    """Two generations in one breath would be one too many."""
    await exhausted(store, "a")
    await exhausted(store, "b")

    assert await replay(store, "a", "b", "a") == ["a", "b"]
    assert (await found(store, "a")).generation == 2
    assert await replay(store) == []


@on_each_store
async def test_a_dead_letter_whose_work_is_being_done_stays_dead(store: Store) -> None:
    """Its live twin does the work; replayed as well, it would be done twice at once."""
    await exhausted(store, "dead", dedup_key="page")
    await exhausted(store, "free", dedup_key="other")
    twin = await running(store, "twin", dedup_key="page")
    before = await found(store, "dead")

    assert await replay(store, "dead", "free", edit=Edit(b"2")) == ["free"]
    assert await found(store, "dead") == before

    await end(store, twin, Completed(b"1"))
    assert await replay(store, "dead") == ["dead"]


@on_each_store
async def test_of_two_dead_twins_one_is_replayed(store: Store) -> None:
    """`replay --all` names both; the first is live again when the second's turn comes."""
    await exhausted(store, "a", dedup_key="page")
    await exhausted(store, "b", dedup_key="page")

    assert await replay(store, "a", "b") == ["a"]
    assert await state_of(store, "b") is JobState.DEAD_LETTER


@on_each_store
async def test_a_replayed_job_is_a_twin_again(store: Store) -> None:
    """Live is live, whichever generation."""
    await exhausted(store, "a", dedup_key="page")
    await replay(store, "a")
    (answer,) = await store.accept([a_job("b", dedup_key="page")], now=LATER)

    assert (answer.id, answer.created) == ("a", False)


@on_each_store
async def test_a_replayed_job_no_longer_waits_for_its_revival(store: Store) -> None:
    """It is pending, then perhaps completed: a revival would run it again."""
    claim = await exhausted(store, "j")
    assert await store.revivable(now=EVER, limit=10) == [("j", claim.model)]
    await replay(store, "j")

    assert await store.revivable(now=EVER, limit=10) == []
    (again,) = await take(store, claim.model)
    await end(store, again, REJECTED)
    assert await store.revivable(now=EVER, limit=10) == []


@on_each_store
async def test_a_replayed_job_that_expires_forgets_its_old_cool_down(store: Store) -> None:
    """It died of something else this time; only the exhausted come back by themselves."""
    await exhausted(store, "j")
    await replay(store, "j", expires_after_s=10.0)
    await store.expire(now=LATER + 10.0, limit=10)

    assert (await found(store, "j")).reason == "expired"
    assert await store.revivable(now=EVER, limit=10) == []


@on_each_store
async def test_a_discarded_letter_needs_nobody_any_more(store: Store) -> None:
    """It leaves the list of dead letters, keeps its story, and does not come back by itself."""
    await exhausted(store, "j")

    assert await store.discard(["j", "j", "nobody"], by="operator", now=LATER) == ["j"]
    job = await found(store, "j")

    assert (job.state, job.reason) == (JobState.CANCELLED, "discarded")
    assert job.finished_at is not None
    assert job.finished_at.timestamp() == LATER
    assert [(entry.outcome, entry.by) for entry in job.history] == [
        ("failed", None),
        ("discarded", "operator"),
    ]
    assert await store.revivable(now=EVER, limit=10) == []
    assert await store.select(JobFilter(state=JobState.DEAD_LETTER), limit=10) == []
    assert await replay(store, "j") == []


@pytest.mark.parametrize(
    "message", ["a\u2028b", "a\x85b", "a\nb\r\nc", 'quoted "x" \\', "\x1c\x0b\x0c"], ids=ascii
)
@on_each_store
async def test_a_history_can_be_read_whatever_a_provider_said(store: Store, message: str) -> None:
    """A line separator in one message must not make the job unreadable for ever."""
    claim = await running(store, "j")
    await store.cancel("j", now=NOW)
    await store.accept([a_job("k")], now=NOW)
    await store.cancel("k", now=NOW, why=message)

    assert (await found(store, "k")).history[-1].message == message
    assert await end(store, claim, TRANSIENT) is Settled.CANCELLED


# ---- Edits and keys -----------------------------------------------------------------------------------------


@on_each_store
async def test_an_edit_may_move_a_job_to_another_model(store: Store) -> None:
    """There it stands in line, and no longer in the old one."""
    await exhausted(store, "j", model="old")
    await replay(store, "j", edit=Edit(b"2", "new"))

    assert (await found(store, "j")).model == "new"
    assert await take(store, "old") == []
    assert [claim.model for claim in await take(store, "new")] == ["new"]


@on_each_store
async def test_a_replay_under_a_key_is_done_once(store: Store) -> None:
    """Even if the job has died again meanwhile: whoever repeats the request only lost the answer to it."""
    first = await exhausted(store, "j")
    asked: dict[str, Any] = {"by": "me", "now": LATER, "expires_after_s": 9.0, "tenant": "local"}

    assert await store.replay(["j"], **asked, key=a_key()) == [Accepted("j")]
    (claim,) = await take(store, first.model)
    await end(store, claim, REJECTED)
    assert await store.replay(["j"], **asked, key=a_key()) == [Accepted("j", created=False)]
    assert (await found(store, "j")).generation == 2

    with pytest.raises(KeyMismatch):
        await store.replay(["j"], **asked, key=a_key(body=b"another"))
    assert await store.replay(["j"], **asked, key=a_key("another")) == [Accepted("j")]
    assert (await found(store, "j")).generation == 3


@on_each_store
async def test_a_key_is_not_used_up_by_a_replay_that_was_refused(store: Store) -> None:
    """Once the live twin is through, the same request works."""
    await exhausted(store, "j", dedup_key="page")
    twin = await running(store, "twin", dedup_key="page")
    asked: dict[str, Any] = {"by": "me", "now": LATER, "expires_after_s": 9.0, "tenant": "local"}

    assert await store.replay(["j"], **asked, key=a_key()) == []
    await end(store, twin, Completed(b"1"))
    assert await store.replay(["j"], **asked, key=a_key()) == [Accepted("j")]


@on_each_store
async def test_two_replays_under_one_key_at_once_are_one(store: Store) -> None:
    await exhausted(store, "j")
    asked: dict[str, Any] = {"by": "me", "now": LATER, "expires_after_s": 9.0, "tenant": "local"}
    answers = await asyncio.gather(*(store.replay(["j"], **asked, key=a_key()) for _ in range(5)))

    assert sorted(answer[0].created for answer in answers) == [False] * 4 + [True]
    assert (await found(store, "j")).generation == 2


@on_each_store
async def test_dead_letters_are_counted_by_what_they_have_in_common(store: Store) -> None:
    """Who has a thousand of them wants to see the two mistakes behind them, the more frequent one first."""
    for number in range(3):
        await exhausted(store, f"t{number}", task="translate", model="m", now=NOW + number)
    await end(store, await running(store, "r", task="translate", model="m"), REJECTED)
    await exhausted(store, "foreign", tenant="acme", task="translate", model="m")
    await store.accept([a_job("alive", task="translate")], now=NOW)

    mine = await store.causes(JobFilter(tenant="local"), limit=10)
    assert [(one.task, one.model, one.reason, one.error_class, one.count) for one in mine] == [
        ("translate", "m", "exhausted", "transient", 3),
        ("translate", "m", "permanent", "rejected", 1),
    ]
    assert mine[0].latest_at.timestamp() == NOW + 2
    everybodys = await store.causes(JobFilter(), limit=10)
    assert sorted((one.tenant, one.count) for one in everybodys) == [("acme", 1), ("local", 1), ("local", 3)]
    assert [one.count for one in await store.causes(JobFilter(reason="permanent"), limit=10)] == [1]
    assert len(await store.causes(JobFilter(), limit=1)) == 1
