"""The metrics page names every metric with its kind and labels, and no other."""

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path

from headgate.calls.status import queue_status
from headgate.core.ports.jobs import Backlog
from headgate.observe.exposition import Family
from headgate.observe.labels import MOST_MEMBERS, MOST_TASKS
from headgate.observe.metrics import Metrics

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(headgate_\w+)` \| (\w+) \| (?:`([\w ]+)` )?\| .+ \|$", re.MULTILINE)


async def _families() -> list[Family]:
    async def count() -> Mapping[str, int]:
        return {}

    async def look() -> Backlog:
        return Backlog(
            pending=0, running=0, oldest_run_at=None, dead_letters=0, oldest_dead_at=None, newly_dead=0
        )

    metrics = Metrics(models=list, status=lambda: queue_status(()), backlog=look, count_jobs=count)
    list(metrics.collect())  # The first look at the jobs begins.
    await asyncio.sleep(0.01)
    return list(metrics.collect())


def test_the_table_names_every_metric_with_its_kind_and_labels() -> None:
    families = asyncio.run(_families())
    expected = {family.name: (family.kind, " ".join(family.labels)) for family in families}
    assert {name: (kind, labels) for name, kind, labels in ROW.findall(PAGE)} == expected


def test_the_expressions_ask_for_metrics_that_exist() -> None:
    known = {name for name, _, _ in ROW.findall(PAGE)}
    asked = set(re.findall(r"headgate_\w+", PAGE.partition("## Questions")[2]))
    assert {re.sub(r"_(sum|count|bucket)$", "", name) for name in asked} - known == set()
    assert asked


def test_the_bounds_of_labels_are_the_ones_in_force() -> None:
    assert f"up to {MOST_MEMBERS} of them" in PAGE
    assert f"Of tasks, {MOST_TASKS} have names" in PAGE
