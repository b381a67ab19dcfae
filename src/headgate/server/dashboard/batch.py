"""One batch: how far it is, its files, what is wrong with its lines; stopping it, running its failed lines again."""

from collections.abc import Iterable, Sequence
from typing import Final

from headgate.core.access import Action
from headgate.core.batch import Batch, BatchState
from headgate.core.batch_order import job_id_of
from headgate.core.errors import UnknownBatch, UnknownFile, UnknownJob
from headgate.server.dashboard.foreign import address, json_block, word
from headgate.server.dashboard.forms import button
from headgate.server.dashboard.html import Child, Markup, el, group
from headgate.server.dashboard.job_words import BATCHES, JOBS, progress_bar
from headgate.server.dashboard.moments import amount
from headgate.server.dashboard.page import Deed, Document, Done, Download, Form, Page, Section, Shown, Visit
from headgate.server.dashboard.parts import badge, facts, heading, table
from headgate.server.dashboard.sources import Sources

MOST_ERRORS: Final = 50
_ONE: Final = f"{BATCHES}/{{batch_id}}"
_TONES: Final = {
    BatchState.COMPLETED: "good",
    BatchState.FAILED: "bad",
    BatchState.EXPIRED: "bad",
    BatchState.CANCELLED: "plain",
    BatchState.CANCELLING: "warn",
}


def pages(sources: Sources) -> Sequence[Page]:
    one = OneBatch(sources)
    return [
        Page(
            path=_ONE,
            entry="Batches",
            show=one.show,
            deeds=[Deed(path=f"{_ONE}/cancel", do=one.cancel), Deed(path=f"{_ONE}/retry", do=one.retry)],
            downloads=[Download(path=f"{_ONE}/{{which}}.jsonl", give=one.give)],
        )
    ]


class OneBatch:
    """`/batches/{id}`."""

    def __init__(self, sources: Sources) -> None:
        self._gateway = sources.gateway

    async def show(self, visit: Visit) -> Shown:
        tenant, batch = await self._find(visit)
        files = await self._files(batch, tenant)
        return Shown(
            batch.id,
            [
                Section("batch", group(_steps(batch, visit), _facts(batch, tenant, visit))),
                Section("files", group(heading("Files"), files)),
                Section("errors", _errors(batch)),
                Section("metadata", _metadata(batch)),
            ],
            el("p", el("a", "All batches", href=BATCHES), " · ", _job(batch)),
        )

    async def cancel(self, visit: Visit, _: Form) -> Done:
        tenant, batch = await self._find(visit)
        now = await self._gateway.batches.cancel(batch.id, tenant=tenant)
        return Done(
            address(BATCHES, batch.id), f"It is {now.status}. Lines that have ended stay in its files."
        )

    async def retry(self, visit: Visit, _: Form) -> Done:
        tenant, batch = await self._find(visit)
        made = await self._gateway.batches.retry(batch.id, models=visit.viewer.models, tenant=tenant)
        return Done(
            address(BATCHES, made.batch.id), f"This new batch runs the lines of {batch.id} that failed."
        )

    async def give(self, visit: Visit) -> Document:
        tenant, batch = await self._find(visit)
        which = visit.path["which"]
        file_id = dict(_named_files(batch)).get(which)
        if file_id is None:
            raise UnknownFile(f"{batch.id}/{which}")
        return Document(
            await self._gateway.files.content(file_id, tenant=tenant), f"{batch.id}-{which}.jsonl"
        )

    async def _find(self, visit: Visit) -> tuple[str, Batch]:
        """Whose it is, and how it stands."""
        batch_id = visit.path["batch_id"]
        try:
            job = await self._gateway.jobs.get(job_id_of(batch_id), tenant=visit.viewer.scope)
        except UnknownJob:
            raise UnknownBatch(batch_id) from None
        return job.tenant, await self._gateway.batches.get(batch_id, tenant=job.tenant)

    async def _files(self, batch: Batch, tenant: str) -> Markup:
        rows = []
        for which, file_id in _named_files(batch):
            link: Child = el(
                "a", f"{which}.jsonl", href=address(BATCHES, batch.id, f"{which}.jsonl"), download=True
            )
            try:
                file = await self._gateway.files.get(file_id, tenant=tenant)
                rows.append((link, word(file.filename), f"{amount(file.bytes)} bytes"))
            except UnknownFile:
                rows.append((which, "not there any more", "–"))
        return table(("File", "Name", "Size"), rows, numeric=frozenset({2}))


def batch_badge(batch: Batch) -> Markup:
    return badge(batch.status.replace("_", " "), _TONES.get(batch.status, "busy"))


def lines_progress(batch: Batch) -> Markup | str:
    counts = batch.request_counts
    if not counts.total:
        return "–"
    ended = counts.completed + counts.failed
    words = f"{amount(ended)} of {amount(counts.total)}"
    failed = (" · ", el("span", f"{amount(counts.failed)} failed", class_="bad")) if counts.failed else None
    return el("span", progress_bar(ended, counts.total, words), " ", words, failed, class_="progress")


def endpoint(batch: Batch) -> str:
    return batch.endpoint.removeprefix("/v1/")


def _named_files(batch: Batch) -> Iterable[tuple[str, str]]:
    named = (
        ("input", batch.input_file_id),
        ("output", batch.output_file_id),
        ("errors", batch.error_file_id),
    )
    return [(name, file_id) for name, file_id in named if file_id is not None]


def _job(batch: Batch) -> Markup:
    return el("a", "Its job", href=address(JOBS, job_id_of(batch.id)))


def _facts(batch: Batch, tenant: str, visit: Visit) -> Markup:
    tell, counts = visit.tell, batch.request_counts
    ended_at = batch.completed_at or batch.failed_at or batch.expired_at or batch.cancelled_at
    return facts(
        [
            ("State", batch_badge(batch)),
            ("Lines", lines_progress(batch)),
            ("Completed", amount(counts.completed)),
            ("Failed", amount(counts.failed)),
            ("Endpoint", endpoint(batch)),
            ("Window", batch.completion_window),
            ("Created", tell.ago(batch.created_at)),
            ("Ended", None if ended_at is None else tell.ago(ended_at)),
            ("Time left", None if batch.status.final else tell.until(batch.expires_at)),
            ("Tenant", word(tenant)),
        ]
    )


def _steps(batch: Batch, visit: Visit) -> Markup | None:
    if not visit.viewer.may(Action.OPERATE):
        return None
    if not batch.status.final:
        sure = button("Yes, cancel it", address(BATCHES, batch.id, "cancel"), kind="danger")
        told = el("p", "Lines that have not begun never will. Those that have ended stay in its files.")
        return el("details", el("summary", "Cancel it…"), told, sure, class_="sure")
    if batch.error_file_id is None:
        return None
    failed = batch.request_counts.failed
    words = "Run the failed line again" if failed == 1 else f"Run the {amount(failed)} failed lines again"
    return el("div", button(words, address(BATCHES, batch.id, "retry"), kind="loud"), class_="actions")


def _errors(batch: Batch) -> Markup:
    if batch.errors is None:
        return group()
    shown = batch.errors.data[:MOST_ERRORS]
    rows = [
        ("–" if one.line is None else one.line, word(one.code), word(one.message, most=500)) for one in shown
    ]
    hidden = len(batch.errors.data) - len(shown)
    cut = el("p", f"{amount(hidden)} more; they are in its job's result.", class_="faint") if hidden else None
    return group(heading("What is wrong with the input file"), table(("Line", "Code", "Message"), rows), cut)


def _metadata(batch: Batch) -> Markup:
    return group(heading("Metadata"), json_block(batch.metadata)) if batch.metadata else group()
