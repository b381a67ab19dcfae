"""Batches: how far each is."""

from collections.abc import Sequence
from typing import Final

from headgate.core.batch import Batch
from headgate.core.batch_order import BATCH_TASK, batch_id_of, is_batch_id, job_id_of
from headgate.core.errors import InvalidRequest
from headgate.server.dashboard import batch
from headgate.server.dashboard.batch import batch_badge, endpoint, lines_progress
from headgate.server.dashboard.html import Child, Markup, el, group
from headgate.server.dashboard.job_words import BATCHES
from headgate.server.dashboard.lists import add_tenants, id_link, pager
from headgate.server.dashboard.page import Page, Section, Shown, Visit
from headgate.server.dashboard.parts import empty, table
from headgate.server.dashboard.sources import Sources

SHOWN: Final = 25


def pages(sources: Sources) -> Sequence[Page]:
    batches = Batches(sources)
    return [Page(path=BATCHES, entry="Batches", show=batches.show), *batch.pages(sources)]


class Batches:
    """`/batches`."""

    def __init__(self, sources: Sources) -> None:
        self._gateway = sources.gateway

    async def show(self, visit: Visit) -> Shown:
        after = visit.asked("after")
        if after is not None and not is_batch_id(after):
            raise InvalidRequest("after must be a batch's id", param="after")
        jobs = await self._gateway.jobs.list(
            task=BATCH_TASK,
            limit=SHOWN + 1,
            after=None if after is None else job_id_of(after),
            tenant=visit.viewer.scope,
        )
        found = [
            (job.tenant, await self._gateway.batches.get(batch_id_of(job.id), tenant=job.tenant))
            for job in jobs[:SHOWN]
        ]
        last = found[-1][1].id if len(jobs) > SHOWN else None
        body = _table(found, visit) if found else _nothing()
        return Shown(
            "Batches", [Section("batches", group(body, pager(BATCHES, visit, last)), "section steady")]
        )


def _table(found: Sequence[tuple[str, Batch]], visit: Visit) -> Markup:
    heads = ["Batch", "State", "Lines", "Endpoint", "Created"]
    rows: list[list[Child]] = [
        [
            id_link(BATCHES, batch.id),
            batch_badge(batch),
            lines_progress(batch),
            endpoint(batch),
            visit.tell.ago(batch.created_at),
        ]
        for _, batch in found
    ]
    add_tenants(heads, rows, [tenant for tenant, _ in found], visit)
    return table(heads, rows, numeric=frozenset({len(heads) - 1}))


def _nothing() -> Markup:
    return empty(
        "There are no batches yet.",
        "Run a file of requests, a line each: ",
        el("code", "headgate batches create requests.jsonl"),
        " or ",
        el("code", "POST /v1/batches"),
        ".",
    )
