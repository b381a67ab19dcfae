"""The audit: fourteen points, each a pure function over the four books that returns its violations in words.

The fourteenth is that the audit can fail: `test_audit.py` plants a fault for each of the others.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final

from chaos import job_points, key_points, process_points
from chaos.books import Asked, Books, Kind

Point = Callable[[Books], list[str]]
POINTS: Final[Mapping[int, Point]] = {
    1: job_points.one_job_for_each_key,
    2: job_points.no_job_but_those_asked_for,
    3: job_points.nothing_is_stuck,
    4: job_points.calls_are_accounted_for,
    5: job_points.crashes_have_causes,
    6: job_points.claims_end_once,
    7: job_points.ends_are_final,
    8: key_points.one_answer_for_each_key,
    9: key_points.no_key_is_stuck,
    10: key_points.streams_are_honest,
    11: process_points.nodes_keep_their_leases,
    12: job_points.the_dead_are_noticed,
    13: process_points.answers_are_well_formed,
}
OF_JOBS: Final = (1, 2, 3, 4, 5, 6, 7)
OF_KEYS: Final = (8, 9, 10)
OF_PROCESSES: Final = (11, 13)
MAX_LINES: Final = 4
"""Violations listed of one point: a broken rule breaks often."""


def violations(books: Books, points: Collection[int] = POINTS.keys()) -> dict[int, list[str]]:
    """What each of these points found; points without a violation are left out."""
    return {number: found for number in points if (found := POINTS[number](books))}


def check(books: Books, points: Collection[int], *, seed: int) -> None:
    """Fail with everything that was found, the disturbances, and how to see it again."""
    found = violations(books, points)
    if not found:
        return
    lines = [f"{sum(map(len, found.values()))} violations; HEADGATE_CRASH_SEED={seed} plays it again"]
    for number, listed in found.items():
        lines.append(f"Point {POINTS[number].__doc__}")
        lines += [f"  - {one}" for one in listed[:MAX_LINES]]
        if len(listed) > MAX_LINES:
            lines.append(f"  … and {len(listed) - MAX_LINES} more")
    lines.append("The disturbances:")
    lines += [f"  {one}" for one in sorted(books.disturbances, key=lambda one: one.began)]
    raise AssertionError("\n".join(lines))


def figures(books: Books) -> str:
    """What happened, in numbers."""
    kinds = [one.kind for one in books.disturbances]
    accepted = {
        job_id
        for answer in books.answers
        if answer.asked is Asked.SUBMIT and answer.status == 202
        for job_id in answer.job_ids
    }
    keyed = books.keyed(Asked.CALL, Asked.STREAM)
    texts = [{one.text for one in answers if key_points.complete(one)} for answers in keyed.values()]
    prompts = job_points.calls_by_prompt(books.calls)
    counted = {
        "accepted": len(accepted),
        "completed": sum(job.state == "completed" for job in books.jobs),
        "keys": len(keyed),
        "keys with two answers": sum(len(found) > 1 for found in texts),
        "calls": len(books.calls),
        "extra calls": len(books.calls) - len(prompts),
        "crashes": sum(job.crashes for job in books.jobs),
        "kills": kinds.count(Kind.KILL),
        "freezes": kinds.count(Kind.FREEZE),
        "cuts": sum(kind in {Kind.CUT, Kind.SILENCE, Kind.REFUSAL, Kind.DELAY} for kind in kinds),
        "outages": kinds.count(Kind.STORE),
        "clock steps": kinds.count(Kind.CLOCK),
        "times starved": kinds.count(Kind.STARVED),
    }
    return ", ".join(f"{count} {what}" for what, count in counted.items() if count or "two" in what)
