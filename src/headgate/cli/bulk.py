"""An order about dead letters, some by id or all that match: count, ask, act, and say how many were done."""

import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import typer

from headgate.cli.backend import Backend, Verb
from headgate.cli.filters import Filter
from headgate.cli.pace import Course, follow
from headgate.cli.reaching import Where
from headgate.cli.screen import note, show, stderr
from headgate.cli.words import count_of, one_line, printable
from headgate.core.errors import InvalidRequest, StateConflict
from headgate.core.job import JobState

DONE: Final = 0
DECLINED: Final = 1
WRONG: Final = 2
INTERRUPTED: Final = 130
MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a user asked for."""

    verb: Verb
    ids: tuple[str, ...]
    which: Filter
    dry_run: bool
    yes: bool
    per_second: float
    new_input: Any = None


def carry_out(order: Order, place: Where) -> int:
    """Do it; answers with the exit code."""
    if bool(order.ids) == order.which.given:
        raise InvalidRequest(
            f"say which dead letters to {order.verb}: either ids, or a filter such as --task or --reason",
            param="filter",
        )
    if order.ids:
        return place.run_existing(lambda backend: _each(backend, order))
    which, found = place.run_existing(lambda backend: _count(backend, order.which))
    if not found or order.dry_run:
        show(_matches(found) + (" Nothing was changed." if found else ""))
        return DONE
    if not order.yes and not _agreed(order, found):
        note("Nothing was changed.")
        return DECLINED
    course = place.run_existing(
        lambda backend: follow(
            backend.act_on_all(order.verb, which, order.per_second), found.total(), order.per_second
        )
    )
    return _report(order, found.total(), course)


# ---- By id ----------------------------------------------------------------------------------------------


async def _each(backend: Backend, order: Order) -> int:
    """One after the other; one that cannot be done does not keep the others from it."""
    code = DONE
    for job_id in order.ids:
        try:
            show(await _one(backend, order, job_id))
        except (InvalidRequest, StateConflict) as error:
            note(f"headgate: {printable(str(error))}")
            code = WRONG
    return code


async def _one(backend: Backend, order: Order, job_id: str) -> str:
    if order.dry_run:
        job = await backend.job(job_id)
        if job.state is not JobState.DEAD_LETTER:
            raise StateConflict(f"job {job_id} is {job.state}, not a dead letter")
        return f"{job_id} would be {order.verb}ed"
    if order.verb is Verb.REPLAY:
        await backend.replay(job_id, order.new_input)
    else:
        await backend.discard(job_id)
    return f"{job_id} {order.verb}ed"


# ---- All that match ---------------------------------------------------------------------------------------


async def _count(backend: Backend, which: Filter) -> tuple[Filter, Counter[str]]:
    """How many match by now, by task; and the filter that matches no later ones."""
    which = which.not_after(await backend.now())
    found: Counter[str] = Counter()
    with stderr().status("counting"):
        async for job in backend.all_dead(which):
            found[job.task] += 1
    return which, found


def _matches(found: Counter[str]) -> str:
    if not found:
        return "No dead letters match."
    parts = [f"{count:,} {one_line(task)}" for task, count in found.most_common(MOST_NAMED)]
    if len(found) > MOST_NAMED:
        parts.append(f"and {count_of(len(found) - MOST_NAMED, 'other task')}")
    return f"{count_of(found.total(), 'dead letter')} match{'es' if found.total() == 1 else ''}: {', '.join(parts)}."


def _agreed(order: Order, found: Counter[str]) -> bool:
    if not sys.stdin.isatty():
        raise InvalidRequest(
            f"{_matches(found)} Nothing was changed: there is no terminal to ask on. Add --yes to {order.verb} them."
        )
    note(_matches(found))
    return typer.confirm(f"{order.verb.capitalize()} {'it' if found.total() == 1 else 'them'}?", err=True)


def _report(order: Order, total: int, course: Course) -> int:
    words = f"{count_of(course.done, 'dead letter')} {order.verb}ed"
    if course.stopped:
        show(f"Stopped: {words} of {total:,}. The others are as they were.")
        return INTERRUPTED
    if course.done < total:
        words += (
            f"; {total - course.done:,} had changed meanwhile, or their work is being done by another job"
        )
    show(f"{words}.")
    return DONE
