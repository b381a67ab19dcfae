"""A hundred identical submissions at once, from two processes, under one key: one job, and all hundred hear of it."""

import time
from collections import defaultdict
from typing import Any

import pytest
from conftest import Figure
from crash import audit
from crash.harness import ROUNDS, Family, Site

AT_ONCE = 100
PROCESSES = 2
TIMES = ROUNDS or 50
EVERY_S = 0.05


@pytest.mark.timeout(3600)
def test_a_hundred_identical_submissions_with_one_key_are_one_job(
    family: Family, site: Site, figure: Figure
) -> None:
    """An impatient client, a proxy that repeats, two of everything: the key says that all of it is one wish."""
    asked: dict[str, Any] = {
        "first_at": time.monotonic() + 0.5,
        "every_s": EVERY_S,
        "rounds": TIMES,
        "size": AT_ONCE // PROCESSES,
    }
    crowds = [family.start("crowd", settings=site.settings(), **asked) for _ in range(PROCESSES)]
    assert [crowd.wait(within_s=60 + TIMES) for crowd in crowds] == [0] * PROCESSES

    heard: defaultdict[int, list[str]] = defaultdict(list)
    created: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for line in site.lines("answers"):
        heard[line["round"]] += line["ids"]
        created[line["round"]].append((line["created"], line["pid"]))
    assert len(heard) == TIMES
    assert {(len(ids), len(set(ids))) for ids in heard.values()} == {(AT_ONCE, 1)}
    assert {sum(count for count, _ in told) for told in created.values()} == {1}
    assert len(audit.open_books(site).jobs) == TIMES
    winners = [pid for told in created.values() for count, pid in told if count]
    least = min(winners.count(crowd.pid) for crowd in crowds)
    figure(
        f"{site.kind}: {AT_ONCE} submissions under one key, {TIMES} times",
        f"1 job each time; the slower process was first in {least}",
    )
