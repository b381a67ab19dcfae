"""Summaries at once: one slot for all of it, regenerated while it is held, refused before any byte."""

import asyncio
import json
from typing import Any

import pytest
from apps.articles.desk_stage import (
    CONTENT,
    LONG,
    ArticleStage,
    open_articles,
    temperatures_at_the_provider,
)
from jobstage import JobStages, on_job_stages

import headgate


def _free(stage: ArticleStage) -> bool:
    [gate] = [one for one in stage.stage.gateway.status().upstreams if one.model == "m"]
    return gate.available_slots == gate.total_slots and not gate.rt_queue + gate.be_queue


async def _events(stream: headgate.AppStream) -> list[bytes]:
    try:
        return [piece async for piece in stream.pieces]
    finally:
        assert stream.close is not None
        await stream.close()


@on_job_stages
async def test_the_answer_has_all_its_fields_and_is_kept(stages: JobStages) -> None:
    stage = await open_articles(stages, {"latency_s": 2.0})
    told = await stage.now()
    kept = await stage.summary()
    assert told == {
        "success": True,
        "article_id": "a1",
        "summary": kept["summary"],
        "model": "m",
        "prompt_tokens": kept["prompt_tokens"],
        "completion_tokens": kept["completion_tokens"],
        "total_duration_ms": 2000,
    }
    assert (await stage.queue())["reason"] == "summary_exists", (
        "every way to an end leaves what the guard looks at"
    )


@pytest.mark.parametrize("content", ["x" * 50 + " " * 100, " " * 200])
@on_job_stages
async def test_content_that_is_too_short_is_refused_before_any_call(stages: JobStages, content: str) -> None:
    stage = await open_articles(stages)
    with pytest.raises(headgate.InvalidRequest) as caught:
        await stage.now(content=content)
    assert caught.value.param == "content"
    assert stage.stage.provider.calls == 0


@on_job_stages
async def test_repetition_is_regenerated_in_the_same_slot_with_other_parameters(
    stages: JobStages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One article stood in the queue three times: every regeneration queued anew."""
    stage = await open_articles(stages, {"slots": 1, "latency_s": 10.0, "script": ["repeat", "repeat", "ok"]})
    asked = temperatures_at_the_provider(monkeypatch)
    first = asyncio.create_task(stage.now("a1"))
    await asyncio.sleep(1)
    rival = asyncio.create_task(stage.now("a2", priority="high"))
    assert (await first)["total_duration_ms"] == 30_000, "nobody came in between"
    assert asked[:3] == [0.3, 0.55, 0.8]
    assert (await rival)["total_duration_ms"] == 29_000 + 10_000


@pytest.mark.parametrize("most", [0, 1, 2])
@on_job_stages
async def test_after_max_repetition_retries_it_is_unprocessable(stages: JobStages, most: int) -> None:
    stage = await open_articles(stages, {"outcome": "repeat"}, options={"max_repetition_retries": most})
    with pytest.raises(headgate.OutputInvalid) as caught:
        await stage.now()
    assert (caught.value.attempts, stage.stage.provider.calls) == (most + 1, most + 1)
    assert await stage.summary() is None
    assert _free(stage)


@on_job_stages
async def test_two_blank_answers_give_the_slot_up(stages: JobStages) -> None:
    """Blank answers burnt slots."""
    stage = await open_articles(stages, {"outcome": "blank"}, options={"max_repetition_retries": 5})
    with pytest.raises(headgate.OutputInvalid):
        await stage.now()
    assert stage.stage.provider.calls == 2
    assert _free(stage)


@on_job_stages
async def test_one_blank_answer_is_regenerated(stages: JobStages) -> None:
    stage = await open_articles(stages, {"script": ["blank", "ok"]})
    assert (await stage.now())["success"]
    assert stage.stage.provider.calls == 2


@on_job_stages
async def test_a_long_article_holds_one_slot_for_all_its_parts(stages: JobStages) -> None:
    stage = await open_articles(stages, {"slots": 1, "latency_s": 10.0})
    told = await stage.now(content=LONG)
    calls = stage.stage.provider.calls
    assert calls > 5
    assert told["total_duration_ms"] == calls * 10_000
    assert told["prompt_tokens"] > len(LONG) // 4


@on_job_stages
async def test_the_parts_of_a_long_article_share_one_deadline(stages: JobStages) -> None:
    stage = await open_articles(stages, {"latency_s": 10.0}, options={"timeout_s": 25.0})
    with pytest.raises(headgate.DeadlineExceeded):
        await stage.now(content=LONG)
    assert stage.stage.now == pytest.approx(25.0)
    assert _free(stage)


@on_job_stages
async def test_a_slot_that_is_taken_away_is_waited_for_anew(stages: JobStages) -> None:
    """A preempted request was told 500, and its callers gave up."""
    stage = await open_articles(stages, {"slots": 1, "latency_s": 10.0, "preempt": True})
    low = asyncio.create_task(stage.now("low"))
    await asyncio.sleep(3)
    assert (await stage.now("high", priority="high"))["total_duration_ms"] == 10_000
    assert (await low)["total_duration_ms"] == 3_000 + 10_000 + 10_000


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"stream": True, "content": LONG}])
@on_job_stages
async def test_a_full_queue_refuses_at_once_streams_too(stages: JobStages, more: dict[str, Any]) -> None:
    """A stream took its slot after the 200 was sent."""
    stage = await open_articles(stages, {"slots": 1, "depth": 1, "outcome": "stall"})
    others = [asyncio.create_task(stage.now(f"a{one}", priority="high")) for one in range(2)]
    await asyncio.sleep(1)
    with pytest.raises(headgate.QueueFull) as caught:
        await stage.now("late", priority="high", **more)
    assert (stage.stage.now, caught.value.retry_after_s > 0) == (1.0, True)
    for one in others:
        one.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    assert _free(stage)


# ---- Streams -----------------------------------------------------------------------------------------------------


@on_job_stages
async def test_a_stream_says_its_text_and_ends_with_the_whole(stages: JobStages) -> None:
    stage = await open_articles(stages, {"latency_s": 1.0, "chunk_gap_s": 1.0, "chunks": 4})
    events = await _events(await stage.now(stream=True))
    said = [json.loads(event[6:]) for event in events if event.startswith(b"data: ")]
    name, _, data = events[-1].partition(b"\n")
    done = json.loads(data[6:])
    assert (name, done["summary"], len(said)) == (b"event: done", "".join(said), 4)
    assert (await stage.summary())["summary"] == done["summary"]
    assert _free(stage)


@on_job_stages
async def test_a_stream_that_is_slow_gives_signs_of_life(stages: JobStages) -> None:
    """Proxies cut at 100 s. Signs of life come when the slot is held: before, a refusal needs its status."""
    stage = await open_articles(stages, {"slots": 1, "latency_s": 45.0, "chunk_gap_s": 25.0, "chunks": 2})
    before = asyncio.create_task(stage.now("before"))
    await asyncio.sleep(1)
    opening = asyncio.create_task(stage.now(stream=True))
    await asyncio.sleep(40)
    assert not opening.done(), "it waits for its slot"
    stream = await opening
    assert stage.stage.now < 60, "it has begun long before there is text"
    events = await _events(stream)
    assert await before
    assert events[0].startswith(b":")
    assert sum(event.startswith(b":") for event in events) >= 5


@on_job_stages
async def test_a_long_article_is_streamed_with_signs_of_life_too(stages: JobStages) -> None:
    stage = await open_articles(stages, {"slots": 1, "latency_s": 15.0})
    events = await _events(await stage.now(content=LONG, stream=True))
    assert sum(event.startswith(b":") for event in events) >= 4
    assert events[-1].startswith(b"event: done")
    assert _free(stage)


@pytest.mark.parametrize("content", [CONTENT, LONG])
@on_job_stages
async def test_who_leaves_takes_the_work_along(stages: JobStages, content: str) -> None:
    """A generator's clean-up on disconnect was not guaranteed, and the slot was gone."""
    stage = await open_articles(stages, {"slots": 1, "latency_s": 60.0})
    stream = await stage.now(content=content, stream=True)
    assert stream.close is not None
    await stream.close()
    assert _free(stage)
    assert stage.stage.provider.cancelled == 1


@pytest.mark.parametrize(
    ("outcome", "error"), [("blank", headgate.OutputInvalid), ("rejected", headgate.RequestRejected)]
)
@on_job_stages
async def test_what_fails_before_any_text_is_told_with_its_status(
    stages: JobStages, outcome: str, error: type[Exception]
) -> None:
    stage = await open_articles(stages, {"outcome": outcome})
    with pytest.raises(error):
        await stage.now(stream=True)
    assert _free(stage)


@on_job_stages
async def test_a_stream_that_goes_round_in_circles_ends_with_an_error(stages: JobStages) -> None:
    """What was said cannot be taken back, but it is not kept as if it were good."""
    stage = await open_articles(stages, {"outcome": "repeat", "chunk_gap_s": 1.0})
    with pytest.raises(headgate.OutputInvalid):
        await _events(await stage.now(stream=True))
    assert await stage.summary() is None
    assert _free(stage)


@on_job_stages
async def test_a_summary_is_told_although_the_database_is_away(
    stages: JobStages, caplog: pytest.LogCaptureFixture
) -> None:
    stage = await open_articles(stages, work=False)
    await stage.stage.gateway.durable.store.aclose()
    assert (await stage.now())["success"]
    assert "was told but not kept" in caplog.text


@on_job_stages
async def test_a_summary_is_returned_and_not_kept_over_the_tenants_quota(
    stages: JobStages, caplog: pytest.LogCaptureFixture
) -> None:
    """Each call can name another article: without a bound a tenant could fill the disk with summaries."""
    stage = await open_articles(stages, work=False, limits={"tenant_bytes": 6_000})
    for number in range(10):
        assert (await stage.now(f"a{number}"))["success"]
    stored = (await stage.stage.gateway.durable.store.stored_bytes())["local"]
    assert 0 < stored <= 6_000
    assert await stage.summary("a0") is not None
    assert await stage.summary("a9") is None
    assert "the summary of article a9 was told but not kept: tenant 'local' stores" in caplog.text
