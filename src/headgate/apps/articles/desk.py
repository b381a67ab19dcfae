"""Summaries for later: the guard's questions to the store, the job, and how it stands."""

import msgspec

import headgate
from headgate.apps.articles.guard import LastJob, Queue, SkipReason, judge
from headgate.apps.articles.options import Options
from headgate.apps.articles.shapes import (
    ARTICLES,
    LATEST_JOBS,
    LEAST_CHARS,
    Article,
    Queued,
    SummarizeLater,
    SummaryStatus,
    lane_of,
)
from headgate.apps.articles.task import NAME

_REPLAYED = {"idempotent-replayed": "true"}


class Desk:
    """`queue` and `status`."""

    def __init__(self, gateway: headgate.Gateway, options: Options) -> None:
        self._gateway = gateway
        self._options = options

    async def queue(self, call: headgate.AppCall) -> headgate.AppReply:
        asked: SummarizeLater = call.body
        call.check_model(self._options.model)
        if len(asked.content.strip()) < LEAST_CHARS:
            return _skipped(SkipReason.CONTENT_TOO_SHORT)
        latest = await self._gateway.records.get(LATEST_JOBS, asked.article_id, tenant=call.tenant)
        if latest is not None and call.key is not None and latest.body.get("key") == call.key:
            return await self._submit(asked, call)  # The store knows what came of it.
        job = None if latest is None or latest.job_id is None else await self._job(latest.job_id, call)
        # The job first, then the summary: one that ends in between is seen either way.
        summary = await self._gateway.records.get(ARTICLES, asked.article_id, tenant=call.tenant)
        verdict = judge(
            summarised=summary is not None,
            last=None if job is None else _last(job),
            now=self._gateway.now(),
            cooldown_s=self._options.cooldown_s,
        )
        if isinstance(verdict, SkipReason):
            return _skipped(verdict, job)
        if verdict is Queue.AGAIN and job is not None:
            return await self._again(job, asked, call)
        return await self._submit(asked, call)

    async def status(self, call: headgate.AppCall) -> headgate.AppReply:
        job_id = call.path["job_id"]
        job = await self._gateway.jobs.get(job_id, tenant=call.tenant)
        if job.task != NAME:
            raise headgate.UnknownJob(job_id)
        told = SummaryStatus(
            job_id=job.id,
            article_id=job.input["article_id"],
            status=job.state,
            retry_count=_failed_attempts(job),
            max_retries=job.max_attempts,
            error_message=job.error or job.reason,
            summary=None if job.result is None else job.result["summary"],
        )
        return headgate.AppReply(value=told)

    async def _job(self, job_id: str, call: headgate.AppCall) -> headgate.Job | None:
        """None when its time in the store is over."""
        try:
            return await self._gateway.jobs.get(job_id, tenant=call.tenant)
        except headgate.UnknownJob:
            return None

    async def _submit(self, asked: SummarizeLater, call: headgate.AppCall) -> headgate.AppReply:
        handle = await self._gateway.jobs.submit(
            NAME,
            Article(article_id=asked.article_id, content=asked.content),
            lane=lane_of(asked.priority),
            dedup_key=f"article {asked.article_id}",
            metadata={"article_id": asked.article_id},
            records=[headgate.record(LATEST_JOBS, asked.article_id, {"key": call.key})],
            idempotency_key=call.key,
            endpoint=call.route,
            tenant=call.tenant,
        )
        job = await handle.job()
        if handle.created:
            return _accepted(job)
        if call.key is None:
            return _skipped(SkipReason.IN_FLIGHT, job)  # Somebody else was faster by a moment.
        return _accepted(job, _REPLAYED)

    async def _again(
        self, dead: headgate.Job, asked: SummarizeLater, call: headgate.AppCall
    ) -> headgate.AppReply:
        """The same text keeps the steps that are paid for."""
        given = Article(article_id=asked.article_id, content=asked.content)
        changed = None if msgspec.to_builtins(given) == dead.input else given
        try:
            handle = await self._gateway.dead_letters.replay(
                dead.id, input=changed, by=call.by, tenant=call.tenant
            )
        except headgate.StateConflict:
            return _skipped(SkipReason.IN_FLIGHT, dead)  # It came back by itself, or somebody sent it.
        return _accepted(await handle.job())


def _failed_attempts(job: headgate.Job) -> int:
    """A job counts the attempt that runs, and the one that ended it well or was cancelled, too."""
    if job.state in {headgate.JobState.PENDING, headgate.JobState.DEAD_LETTER}:
        return job.attempts
    cancelled_while_it_waited = (
        job.state is headgate.JobState.CANCELLED and bool(job.history) and job.history[-1].attempt is None
    )
    return job.attempts if cancelled_while_it_waited else max(0, job.attempts - 1)


def _last(job: headgate.Job) -> LastJob:
    ended_at = None if job.finished_at is None else job.finished_at.timestamp()
    return LastJob(job.state, job.reason, ended_at)


def _accepted(job: headgate.Job, headers: dict[str, str] | None = None) -> headgate.AppReply:
    told = Queued(job_id=job.id, status=job.state)
    return headgate.AppReply(value=told, status=202, headers=headers or {})


def _skipped(reason: SkipReason, job: headgate.Job | None = None) -> headgate.AppReply:
    told = Queued(job_id=None if job is None else job.id, status="skipped", reason=reason)
    return headgate.AppReply(value=told, status=202)
