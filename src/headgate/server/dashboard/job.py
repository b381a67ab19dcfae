"""One job: all that is known of it, its history, what it was given and what came of it; and stopping it."""

from collections.abc import Sequence

import msgspec

from headgate.core.access import Action
from headgate.core.batch_order import BATCH_TASK, batch_id_of
from headgate.core.job import Job, JobState
from headgate.server.dashboard.foreign import address, json_block, message, word
from headgate.server.dashboard.forms import button
from headgate.server.dashboard.history import history
from headgate.server.dashboard.html import Markup, el, group
from headgate.server.dashboard.job_words import BATCHES, DEAD_LETTERS, JOBS, progress, state_badge
from headgate.server.dashboard.moments import amount, duration
from headgate.server.dashboard.page import Deed, Document, Done, Download, Form, Page, Section, Shown, Visit
from headgate.server.dashboard.parts import facts, heading
from headgate.server.dashboard.sources import Sources

_ONE = f"{JOBS}/{{job_id}}"


def pages(sources: Sources) -> Sequence[Page]:
    one = OneJob(sources)
    return [
        Page(
            path=_ONE,
            entry="Jobs",
            show=one.show,
            deeds=[Deed(path=f"{_ONE}/cancel", do=one.cancel)],
            downloads=[Download(path=f"{_ONE}/json", give=one.give)],
        )
    ]


class OneJob:
    """`/jobs/{id}`."""

    def __init__(self, sources: Sources) -> None:
        self._jobs = sources.gateway.jobs

    async def show(self, visit: Visit) -> Shown:
        job = await self._find(visit)
        whole = json_address(job)
        return Shown(
            job.id,
            [
                Section("job", group(_steps(job, visit), job_facts(job, visit))),
                Section("error", _error(job)),
                Section("history", history(job, visit, whole)),
                Section("result", _result(job, whole)),
                Section("input", group(heading("Input"), json_block(job.input, whole))),
                Section("metadata", _metadata(job, whole)),
            ],
            el("p", el("a", "All jobs", href=JOBS), " · ", el("a", "JSON", href=whole)),
        )

    async def cancel(self, visit: Visit, _: Form) -> Done:
        job = await self._find(visit)
        state = await self._jobs.cancel(job.id, tenant=job.tenant)
        said = "It is cancelled." if state is JobState.CANCELLED else "It stops as soon as its task lets go."
        return Done(address(JOBS, job.id), said)

    async def give(self, visit: Visit) -> Document:
        return Document(msgspec.json.encode(await self._find(visit)))

    async def _find(self, visit: Visit) -> Job:
        return await self._jobs.get(visit.path["job_id"], tenant=visit.viewer.scope)


def json_address(job: Job) -> str:
    return address(JOBS, job.id, "json")


def job_facts(job: Job, visit: Visit) -> Markup:
    tell = visit.tell
    live = job.finished_at is None
    return facts(
        [
            ("State", state_badge(job)),
            ("Reason", None if job.reason in {None, "cancelled"} else word(job.reason)),
            ("Progress", progress(job.progress)),
            ("Task", word(job.task)),
            ("Model", word(job.model)),
            ("Attempts", _attempts(job)),
            ("Created", tell.ago(job.created_at)),
            ("Ended", None if live else tell.ago(job.finished_at)),
            ("Runs in", tell.until(job.run_at) if job.state is JobState.PENDING else None),
            ("Expires in", tell.until(job.expires_at) if live else None),
            ("Lane", f"{job.lane}, priority {job.priority}"),
            ("Timeout", duration(job.timeout_s)),
            ("Tenant", word(job.tenant)),
            ("Dedup key", None if job.dedup_key is None else word(job.dedup_key)),
            ("Webhook", None if job.webhook is None else word(job.webhook)),
            ("Batch", _batch(job)),
            ("Hold", None if job.hold else "no: a misconfigured upstream ends it at once"),
        ]
    )


def _attempts(job: Job) -> str:
    words = [f"{job.attempts} of {job.max_attempts}"]
    told = (
        (job.deferrals, "sent back uncounted"),
        (job.crashes, "crashed"),
        (job.revivals, "revived"),
    )
    words += [f"{what} {amount(count)}×" for count, what in told if count]
    if job.generation > 1:
        words.append(f"generation {job.generation}")
    return ", ".join(words)


def _batch(job: Job) -> Markup | None:
    batch_id = batch_id_of(job.id) if job.task == BATCH_TASK else job.batch_id
    return None if batch_id is None else el("a", batch_id, href=address(BATCHES, batch_id), class_="mono")


def _steps(job: Job, visit: Visit) -> Markup | None:
    """What can be done about it."""
    if not visit.viewer.may(Action.OPERATE):
        return None
    if job.state is JobState.DEAD_LETTER:
        link = el("a", "Edit, replay or discard", href=address(DEAD_LETTERS, job.id), class_="button")
        return el("p", link, class_="actions")
    if job.state.final or job.task == BATCH_TASK:
        return None
    return el(
        "div", button("Cancel this job", address(JOBS, job.id, "cancel"), kind="danger"), class_="actions"
    )


def _error(job: Job) -> Markup:
    if job.error is None or job.state is JobState.COMPLETED:
        return group()
    return group(heading("What went wrong last"), message(job.error))


def _result(job: Job, whole: str) -> Markup:
    return group() if job.result is None else group(heading("Result"), json_block(job.result, whole))


def _metadata(job: Job, whole: str) -> Markup:
    return group() if job.metadata is None else group(heading("Metadata"), json_block(job.metadata, whole))
