"""A deep backlog of articles, and people who do not want to wait for it."""

import asyncio
import itertools

from apps.articles.desk_stage import CONTENT, ArticleStage, open_articles
from conftest import Figure
from jobstage import JobStages, on_job_stages
from stage import percentile

ARTICLES = 1000
SERVICE_S = 3.0
"""Waits are told in these: longer ones would show the same, with more looks of an idle worker in between."""
BURST = 4
EVERY_S = 10 * SERVICE_S


async def _burst(stage: ArticleStage, number: int, waits: list[float]) -> None:
    async def ask(article_id: str) -> None:
        told = await stage.now(article_id, priority="high")
        waits.append(told["total_duration_ms"] / 1000 - SERVICE_S)

    await asyncio.gather(*(ask(f"urgent-{number}-{one}") for one in range(BURST)))


@on_job_stages
async def test_bursts_of_interactive_requests_hardly_notice_a_thousand_queued_articles(
    stages: JobStages, figure: Figure
) -> None:
    """61 minutes in the queue was how it began. No article may be lost on the way, and none summarised twice."""
    stage = await open_articles(stages, {"slots": 2, "latency_s": SERVICE_S, "promote_after_s": 86_400})
    queued = await asyncio.gather(
        *(stage.queue(f"article-{number}", f"{number}: {CONTENT}") for number in range(ARTICLES))
    )
    waits: list[float] = []
    for number in itertools.count():
        await asyncio.gather(_burst(stage, number, waits), asyncio.sleep(EVERY_S))
        if not await _at_work(stage):
            break
    ended = await asyncio.gather(*(stage.status(one["job_id"]) for one in queued))
    assert {one["status"] for one in ended} == {"completed"}
    assert len({one["summary"] for one in ended}) == ARTICLES
    assert stage.stage.provider.calls == ARTICLES + len(waits), "nobody was asked twice"
    p99 = percentile(waits, 0.99) / SERVICE_S
    figure(
        "1,000 articles, 2 slots, bursts of 4",
        f"interactive p99 wait {p99:.2f} service times of {len(waits)} (≤ 2); none lost, none twice",
    )
    assert p99 <= 2


async def _at_work(stage: ArticleStage) -> int:
    counts = await stage.stage.gateway.jobs.count()
    return counts.get("pending", 0) + counts.get("running", 0)
