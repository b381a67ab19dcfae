"""Jobs of a model that an operator paused wait, lose nothing, and go on when it is resumed."""

from typing import Any

from jobstage import JobStages, database, on_each_database

from headgate.core.job import JobState

__all__ = ["database"]
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


@on_each_database
async def test_jobs_of_a_paused_model_wait_uncounted(stages: JobStages) -> None:
    """A pause must cost no job an attempt, whether it was claimed before or not, however long it lasts."""
    stage = await stages.open({"latency_s": 1.0, "slots": 1})
    other = await stages.open(work=False)
    handles = [await stage.submit("chat", CHAT) for _ in range(5)]
    await stages.world.clock.sleep(0.5)
    await other.gateway.models.pause("m", by="ann")
    await stages.world.clock.sleep(600)
    jobs = [await stage.job(handle) for handle in handles]
    calls_before = stage.provider.calls
    assert 0 < calls_before < 5
    assert {job.state for job in jobs} == {JobState.PENDING, JobState.COMPLETED}
    await other.gateway.models.resume("m")
    done = [await handle.wait() for handle in handles]
    assert {job.state for job in done} == {JobState.COMPLETED}
    assert stage.provider.calls == 5
    assert stages.now < 700
    assert {job.attempts for job in done} == {1}
