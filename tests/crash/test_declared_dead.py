"""A worker that was thought dead while it lives: it comes back as a new node and is as good as before."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import headgate
from headgate.runner.context import Context

MODEL = "simulated"
CLEANING_S = 0.5


def test_who_takes_up_its_own_job_again_while_the_old_run_cleans_up_loses_no_place(tmp_path: Path) -> None:
    """Two runs of one job in one process, told apart by their leases: both places are free again in the end."""
    runs: list[int] = []
    began = asyncio.Event()

    @headgate.task("slow", model=MODEL)
    async def slow(ctx: Context, _work: dict[str, Any]) -> int:
        runs.append(len(runs))
        began.set()
        if len(runs) > 1:
            return 2
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(CLEANING_S)
        return 1

    async def live() -> None:
        settings = {"data_dir": str(tmp_path), "jobs": {"lease_s": 1.0}}
        async with headgate.open(settings, env={}, work=True, tasks=[slow]) as gateway:
            job = await gateway.jobs.submit("slow", {})
            await began.wait()
            durable = gateway._durable
            await durable.store.bury_dead([durable.node.id])
            # A tidy somebody; the new node needs a file there all the same.
            shutil.rmtree(tmp_path / "nodes")
            assert await job.result(timeout=10) == 2
            await asyncio.sleep(CLEANING_S)
            worker = durable._worker
            assert worker is not None
            assert (worker.running, worker._by_model[MODEL]) == (0, 0)

    asyncio.run(live())
