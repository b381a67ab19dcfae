"""Interactive calls beside a batch of 50,000 lines wait as if they had only the reserved slots, and nobody else."""

import asyncio
import math
import random
from typing import Any

from batches.lines import CHAT, jsonl
from conftest import Figure
from jobstage import JobStage, JobStages, on_job_stages
from stage import USER, percentile

LINES = 50_000
RESERVED = 4
SERVICE_S = 1.0
SECONDS = 200.0
LOAD = 0.75
"""Of what the reserved slots could take."""
WARM_UP_S = 20.0
SLACK_MS = 5.0


def _arrivals(per_s: float) -> list[float]:
    """The same for whoever asks."""
    chance, at, times = random.Random(11), 0.0, []
    while (at := at - math.log(1.0 - chance.random()) / per_s) < SECONDS:
        times.append(at)
    return times


async def _waits_ms(stage: JobStage, per_s: float) -> list[float]:
    """What each interactive call waited for its slot; every one of them is answered."""
    began, calls = stage.now, []
    for at in _arrivals(per_s):
        await stage.world.clock.sleep(began + at - stage.now)
        calls.append(asyncio.ensure_future(stage.gateway.complete(model="m", messages=USER)))
    replies = await asyncio.gather(*calls)
    return [reply.queue_ms for reply in replies]


def _upstream(slots: int, reserved: int) -> dict[str, Any]:
    return {
        "slots": slots,
        "reserved_slots": reserved,
        "depth": 0,
        "latency_s": SERVICE_S,
        "latency": "uniform",
        "latency_spread": 0.5,
    }


def test_a_large_batch_does_not_make_interactive_calls_wait(figure: Figure, tmp_path: Any) -> None:
    """The reserved slots are theirs. The rule that lets batch through now and then never takes one of them for long."""
    per_s = LOAD * RESERVED / SERVICE_S
    waits: dict[str, list[float]] = {}

    @on_job_stages
    async def alone(stages: JobStages) -> None:
        stage = await stages.open(_upstream(RESERVED, 0), work=False)
        waits["alone"] = await _waits_ms(stage, per_s)

    @on_job_stages
    async def beside(stages: JobStages) -> None:
        stage = await stages.open(_upstream(2 * RESERVED, RESERVED))
        file = await stage.gateway.files.create(jsonl(range(LINES)))
        batch = (await stage.gateway.batches.create(input_file_id=file.id, endpoint=CHAT)).batch
        await stage.world.clock.sleep(WARM_UP_S)
        waits["beside"] = await _waits_ms(stage, per_s)
        seen = await stage.gateway.batches.get(batch.id)
        assert seen.request_counts.total == LINES
        assert seen.status == "in_progress"
        # It takes what is left: the batch goes on at the pace of its own slots.
        assert seen.request_counts.completed >= 0.9 * RESERVED * SECONDS / SERVICE_S

    alone(tmp_path / "alone")
    beside(tmp_path / "beside")
    bound_ms = 1.2 * percentile(waits["alone"], 0.99) + SLACK_MS
    p99_ms = percentile(waits["beside"], 0.99)
    figure(
        f"interactive p99 queue wait beside {LINES:,} lines, load {LOAD:.0%}",
        f"{p99_ms:.0f} ms (alone on the reserved slots {percentile(waits['alone'], 0.99):.0f} ms, bound {bound_ms:.0f} ms)",
    )
    assert p99_ms <= bound_ms
