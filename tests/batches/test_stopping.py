"""Stopping lines in bites, as long as there is time."""

from jobstage import JobStages, database, on_each_database

from headgate.batches.stopping import BITE, Stopping
from headgate.runner.submission import Submission

__all__ = ["database"]
BATCH = "batch_000000000001a"


@on_each_database
async def test_who_has_no_time_leaves_the_rest_to_others(stages: JobStages) -> None:
    """A cancel is answered in time, however many lines there are."""
    stage = await stages.open(work=False)
    jobs, stopping = stage.gateway.jobs, Stopping(stage.gateway.durable.store, stage.world.clock)
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    lines = [Submission(task="chat", input=body, model="m")] * (BITE + 3)
    await jobs.submit_inside(lines, tenant="local", batch_id=BATCH)
    await stopping.stop_some(BATCH, "other", within_s=60.0)
    assert (await jobs.count())["pending"] == BITE + 3
    await stopping.stop_some(BATCH, "local", within_s=0.0)
    assert (await jobs.count())["pending"] == 3
    await stopping.stop_all(BATCH, "local")
    assert (await jobs.count())["pending"] == 0
