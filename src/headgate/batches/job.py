"""A batch as a job: the task behind all batches, its steps in order."""

from typing import Final

from headgate.batches.files import BATCH_TASK
from headgate.batches.run import BatchRun, Parts
from headgate.core.batch import LONGEST_LOOK_S, Batch, BatchOrder, Checked, Closing, failed
from headgate.core.retry import RetryPolicy
from headgate.runner.context import Context
from headgate.runner.outcomes import RetryLater
from headgate.runner.tasks import Task

VALIDATE: Final = "validate"
FINALIZE: Final = "finalize"
RUN_S: Final = 3600.0
"""For one run, which never waits for lines: 50,000 of them are submitted or written down within seconds."""
RETRY: Final = RetryPolicy(max_attempts=100, first_wait_s=1.0, factor=2.0, longest_wait_s=60.0)
"""A full disk is no reason to give a batch up."""


def batch_task(parts: Parts) -> Task[BatchOrder, Batch]:
    async def run(ctx: Context, order: BatchOrder) -> Batch:
        """As far as it gets without waiting. The result is the batch as people see it from then on."""
        try:
            return await _go_on(BatchRun(parts, ctx, order), ctx)
        except FileNotFoundError as error:
            raise RetryLater(
                LONGEST_LOOK_S, f"the bytes of a file are not on this machine: {error.filename}"
            ) from error

    return Task(BATCH_TASK, run, model=None, retry=RETRY, timeout_s=RUN_S, inside=True)


async def _go_on(batch: BatchRun, ctx: Context) -> Batch:
    checked: Checked = await ctx.step(VALIDATE, batch.validate, type=Checked)
    if checked.errors:
        await batch.forget_marks()
        return failed(batch.begun, *checked.errors, at=checked.at)
    # Until its lines have ended this raises `RetryLater`: the job waits like any other that is not due yet.
    closing: Closing = await ctx.step(FINALIZE, lambda: batch.close(checked), type=Closing)
    await batch.forget_marks()
    return await batch.write_out(checked, closing)
