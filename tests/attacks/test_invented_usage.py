"""Usage as no provider can have counted it. Limits, prices and metrics are made of such numbers."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
from contracts.provider_stage import Part
from providers.stubs import anthropic, bedrock, ollama, openai
from providers.stubs.scripted import Reply, ScriptedServer
from server.http.front_stage import Play
from server.stage import House, opened
from server.upstreams import EMBEDDINGS, ask, one_model, upstream_of

from headgate.core.answer import Usage
from headgate.core.call import MAX_TOKENS, Lane
from headgate.core.events import Responded
from headgate.core.pacing import Pacing, PacingRules
from headgate.observe.metrics import Metrics

INVENTED: Final[Mapping[str, Any]] = {
    "negative": -7,
    "a fraction": 7.5,
    "310 digits": 10**310,
    "the largest integer": 2**63 - 1,
    "more than any call uses": MAX_TOKENS + 1,
    "true": True,
    "a text": "7",
    "a list": [7],
    "an object": {"n": 7},
}
TEXT: Final = {"type": "text", "text": "well"}


class Counting(ScriptedServer):
    """An upstream with this answer for every request."""

    model = "amazon.nova-lite-v1:0"


def _openai(count: Any, *, stream: bool) -> Reply:
    usage = {"prompt_tokens": count, "completion_tokens": count, "total_tokens": count}
    if not stream:
        return openai.completion(usage=usage)
    told = [
        *openai.events(*openai.words(), usage=False)[:-1],
        openai.event(choices=[], usage=usage),
        openai.DONE,
    ]
    return openai.stream(told)


def _anthropic(count: Any, *, stream: bool) -> Reply:
    usage = {"input_tokens": count, "output_tokens": count, "cache_read_input_tokens": count}
    if not stream:
        return anthropic.said(TEXT, usage=usage)
    start = {**anthropic.START, "message": anthropic.message(stop_reason=None, usage=usage)}
    grown, stop = anthropic.ending()
    return anthropic.events(start, *anthropic.text_block(0, "well"), {**grown, "usage": usage}, stop)


def _ollama(count: Any, *, stream: bool) -> Reply:
    return ollama.lines(ollama.line("well"), ollama.last(prompt_eval_count=count, eval_count=count))


def _bedrock(count: Any, *, stream: bool) -> Reply:
    usage = {"inputTokens": count, "outputTokens": count, "cacheReadInputTokens": count}
    if not stream:
        told = bedrock.said({"text": "well"}, usage=usage)
        return Reply(told.body, headers=told.headers)
    told = bedrock.events(*bedrock.text_events("well")[:-1], bedrock.event("metadata", {"usage": usage}))
    return Reply(told.body, headers=told.headers)


ANSWERS: Final[Mapping[str, Callable[..., Reply]]] = {
    "openai": _openai,
    "anthropic": _anthropic,
    "ollama": _ollama,
    "bedrock": _bedrock,
}


def metrics_of(house: House) -> Metrics:
    metrics = Metrics(models=house.gateway.routes.names, status=house.gateway.status)
    house.gateway.listen(metrics)
    return metrics


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("what", INVENTED)
@pytest.mark.parametrize("provider", ANSWERS)
def test_a_count_that_cannot_be_true_is_replaced_by_an_estimate(
    play: Play, provider: str, what: str, stream: bool
) -> None:
    """The answer is none the worse for it: the caller gets it, and the metrics count what it may have cost."""

    async def scene() -> None:
        async with Counting(ANSWERS[provider](INVENTED[what], stream=stream)) as stub:
            upstream = upstream_of(provider, stub, Part.ANSWER, tokens_per_minute=100_000)
            async with opened(one_model(upstream)) as house:
                metrics = metrics_of(house)
                for _ in range(5):
                    answer = await ask(house, stream=stream)
                    assert answer.status == 200, answer.body
                ended = [event for event in house.events if isinstance(event, Responded)]
                for event in ended:
                    assert event.usage is not None
                    assert event.usage.estimated
                    assert 0 < event.usage.total_tokens < 1000
                assert b'headgate_requests_total{model="m",lane="interactive",outcome="ok"} 5\n' in (
                    metrics.exposition()
                )
                # The library reads what the provider said by itself.
                asked: Any = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
                if stream:
                    async with house.gateway.stream(**asked) as told:
                        async for _ in told:
                            pass
                    assert told.usage is not None
                    assert told.usage.estimated
                else:
                    assert (await house.gateway.complete(**asked)).usage.estimated
        assert len(ended) == 5

    play(scene)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("count", [float("nan"), float("inf")])
@pytest.mark.parametrize("provider", ANSWERS)
def test_what_is_no_json_is_counted_as_nothing(
    play: Play, caplog: pytest.LogCaptureFixture, provider: str, count: float, stream: bool
) -> None:
    """NaN and Infinity make a broken answer, or one whose usage is not known."""

    async def scene() -> None:
        async with (
            Counting(ANSWERS[provider](count, stream=stream)) as stub,
            opened(one_model(upstream_of(provider, stub, Part.ANSWER))) as house,
        ):
            metrics = metrics_of(house)
            await ask(house, stream=stream)
            [event] = [event for event in house.events if isinstance(event, Responded)]
            assert event.error is not None or (event.usage is not None and event.usage.estimated)
            assert b"nan" not in metrics.exposition().lower()
        caplog.clear()

    play(scene)


@pytest.mark.parametrize("provider", ["openai", "ollama"])
@pytest.mark.parametrize("what", INVENTED)
def test_those_of_embeddings_likewise(play: Play, provider: str, what: str) -> None:
    count = INVENTED[what]
    reply = (
        openai.embeddings(usage={"prompt_tokens": count, "total_tokens": count})
        if provider == "openai"
        else ollama.vectors([1.0], [0.5], prompt_eval_count=count)
    )

    async def scene() -> None:
        async with (
            Counting(reply) as stub,
            opened(one_model(upstream_of(provider, stub, Part.EMBEDDINGS))) as house,
        ):
            answer = await ask(house, EMBEDDINGS)
            assert answer.status == 200, answer.body
            [event] = [event for event in house.events if isinstance(event, Responded)]
            assert event.usage is not None
            assert event.usage.estimated

    play(scene)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("provider", ANSWERS)
def test_true_counts_are_still_believed(play: Play, provider: str, stream: bool) -> None:
    async def scene() -> None:
        async with (
            Counting(ANSWERS[provider](MAX_TOKENS // 4, stream=stream)) as stub,
            opened(one_model(upstream_of(provider, stub, Part.ANSWER))) as house,
        ):
            asked: Any = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
            if stream:
                async for _ in house.gateway.stream(**asked):
                    pass
            else:
                await house.gateway.complete(**asked)
            [event] = [event for event in house.events if isinstance(event, Responded)]
            assert event.usage is not None
            assert not event.usage.estimated
            assert event.usage.output_tokens == MAX_TOKENS // 4

    play(scene)


@pytest.mark.parametrize("used", [MAX_TOKENS, 0, 1])
def test_what_pacing_learns_of_counts_is_bounded(used: int) -> None:
    """A call is taken for at most four times and at least a quarter of its estimate."""
    pacing = Pacing(PacingRules(tokens_per_minute=100_000))
    now = 0.0
    for _ in range(200):
        pacing.settle(pacing.start(now, 100), used)
        now += 61.0
    starts = 0
    while pacing.next_at(now, 100) <= now:
        pacing.start(now, 100)
        starts += 1
    assert 250 <= starts <= 4000


def test_one_lie_moves_it_by_little() -> None:
    pacing = Pacing(PacingRules(tokens_per_minute=100_000))
    pacing.settle(pacing.start(0.0, 100), MAX_TOKENS)
    starts, now = 0, 61.0
    while pacing.next_at(now, 100) <= now:
        pacing.start(now, 100)
        starts += 1
    assert starts > 700


@pytest.mark.provokes_internal_error
def test_a_metric_that_cannot_be_told_is_left_out_and_the_page_stays(play: Play, caplog: Any) -> None:
    """A listener is handed a number that no float holds; whoever scrapes sees all other metrics, again and again."""

    async def scene() -> None:
        async with opened({}) as house:
            metrics = metrics_of(house)
            assert (await ask(house, model="simulated/instant")).status == 200
            broken = Usage(10**310, 1)
            told: dict[str, Any] = {
                "model": "simulated/instant",
                "upstream": "simulated",
                "lane": Lane.INTERACTIVE,
            }
            house.gateway._fanout(
                Responded(
                    request_id="r", agent_id=None, attempts=1, latency_ms=1, queue_ms=0, usage=broken, **told
                )
            )
            for _ in range(3):
                page = metrics.exposition()
                assert b"headgate_requests_total" in page
                assert b"headgate_queue_depth" in page
                assert b"headgate_store_up 1" in page
                assert b"process_" in page
            assert (await ask(house, model="simulated/instant")).status == 200
            counted = [
                line for line in metrics.exposition().decode().splitlines() if "requests_total{" in line
            ]
            assert any(line.endswith((" 2", " 3")) for line in counted)
        caplog.clear()

    play(scene)


def test_a_source_of_metrics_that_breaks_takes_no_other_along(caplog: Any) -> None:
    def broken() -> Any:
        raise OverflowError("a number that no float holds")

    metrics = Metrics(models=lambda: ["m"], status=broken, loop_lag_s=broken, alerts=broken)
    for _ in range(2):
        page = metrics.exposition().decode()
        assert "headgate_requests" in page
        assert "headgate_model_paused" in page
        assert "headgate_store_up 1" in page
        assert "headgate_loop_lag_seconds" not in page
        assert "headgate_queue_depth" not in page
    told = [record for record in caplog.records if "the metrics leave out" in record.message]
    assert len(told) == 3, "each is told once"
