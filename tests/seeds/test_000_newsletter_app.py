"""The newsletter judge's Bedrock design, row by row, through the newsletter itself: settings, judge, fallback, time."""

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from apps.newsletter.newsletter_stage import Stage, open_stage

from headgate import wiring
from headgate.apps.newsletter.aws_lambda import metrics_line
from headgate.apps.newsletter.environment import Bedrock, read_environment
from headgate.apps.newsletter.judging_model import choose_model, simulated_judge
from headgate.apps.newsletter.options import NewsletterOptions
from headgate.apps.newsletter.verdicts import Verdict
from headgate.core.events import RetryScheduled
from headgate.core.retry import RetryPolicy
from headgate.planner import virtual
from headgate.planner.virtual import World

ENV_EXAMPLE = Path(__file__).parents[2] / ".env.example"
NAMES = {
    "BEDROCK_MODEL_ID": "anthropic.claude-haiku-4-5",
    "BEDROCK_INFERENCE_PROFILE_ARN": "",
    "BEDROCK_REGION": "ap-northeast-1",
    "BEDROCK_MAX_PARALLEL": "5",
    "BEDROCK_REQUEST_INTERVAL": "2.5",
    "BEDROCK_RETRY_BASE_DELAY": "2.0",
    "BEDROCK_MAX_BACKOFF": "20.0",
    "BEDROCK_MAX_RETRIES": "4",
}


def _fails(code: str, status: int = 400, times: int = 1) -> dict[str, Any]:
    return {"script": [{"status": status, "code": code}] * times}


async def _verdicts(stage: Stage) -> list[Verdict]:
    run = await stage.ledger.run("r1")
    assert run is not None
    return list((await stage.ledger.verdicts(run)).values())


# ---- AppConfig and handler: the variables reach the judge -------------------------------------------


def test_the_variables_have_the_design_s_defaults_and_reach_the_judge() -> None:
    """4 retries are 5 attempts; the cap of 20 s holds after the jitter."""
    settings, judge = choose_model(wiring.read_settings({}, env={}), NewsletterOptions(), NAMES)
    model = settings.models[judge.name]
    [upstream] = model.upstreams
    assert (upstream.provider, upstream.model) == ("bedrock", "anthropic.claude-haiku-4-5")
    assert upstream.options == {"region": "ap-northeast-1"}
    assert (upstream.gate.slots, upstream.gate.pacing.interval_s, judge.parallel) == (5, 2.5, 5)
    assert model.retry == RetryPolicy.bedrock()
    assert judge.setting == "BEDROCK_MODEL_ID"


def test_other_values_reach_the_judge_too_and_a_profile_arn_goes_before_the_model_id() -> None:
    arn = "arn:aws:bedrock:ap-northeast-1:1:inference-profile/jp.claude"
    changed = {
        "BEDROCK_INFERENCE_PROFILE_ARN": arn,
        "BEDROCK_MAX_PARALLEL": "3",
        "BEDROCK_REQUEST_INTERVAL": "1",
        "BEDROCK_RETRY_BASE_DELAY": "4",
        "BEDROCK_MAX_BACKOFF": "60",
        "BEDROCK_MAX_RETRIES": "3",
    }
    settings, judge = choose_model(wiring.read_settings({}, env={}), NewsletterOptions(), NAMES | changed)
    model = settings.models[judge.name]
    [upstream] = model.upstreams
    assert (upstream.model, upstream.gate.slots, upstream.gate.pacing.interval_s) == (arn, 3, 1.0)
    assert (model.retry.first_wait_s, model.retry.longest_wait_s, model.retry.max_attempts) == (4.0, 60.0, 4)
    assert (judge.parallel, judge.setting) == (3, "BEDROCK_INFERENCE_PROFILE_ARN")


def test_a_model_of_the_settings_goes_before_the_variables() -> None:
    settings = wiring.read_settings({}, env={})
    chosen, judge = choose_model(settings, NewsletterOptions(model="simulated"), NAMES)
    assert (chosen, judge.name, judge.setting) == (settings, "simulated", "models.simulated.upstreams")


def test_the_example_environment_names_every_variable_with_its_default() -> None:
    written = dict(re.findall(r"^(\w+)=(.*)$", ENV_EXAMPLE.read_text(), re.MULTILINE))
    assert set(written) == set(NAMES)
    del written["BEDROCK_MODEL_ID"]
    assert read_environment(written) == Bedrock()


# ---- LlmJudge: what is retried, how, and what is not ------------------------------------------------


@pytest.mark.parametrize(
    ("code", "status"), [("ThrottlingException", 429), ("ServiceUnavailableException", 503)]
)
def test_throttling_and_unavailability_are_retried_and_then_judged(
    tmp_path: Path, code: str, status: int
) -> None:
    """The design began with a ThrottlingException that became a quiet IGNORE."""

    async def main(world: World) -> None:
        async with open_stage(world, tmp_path, _fails(code, status), items=1) as stage:
            report, _ = await stage.run()
            assert (report.ok, report.fallback, stage.provider.calls) == (1, 0, 2)

    virtual.run(main)


def test_the_judge_waits_2_4_8_16_s_with_up_to_half_on_top_and_never_over_20(tmp_path: Path) -> None:
    """The first calculate_backoff capped before the jitter: 20 s could be 30 s."""

    def waits_of(seed: int) -> list[float]:
        waits: list[float] = []

        async def main(world: World) -> None:
            script = _fails("ServiceUnavailableException", 503, times=4)
            async with open_stage(world, tmp_path / str(seed), script, items=1) as stage:
                stage.gateway.listen(_waits_into(waits))
                report, _ = await stage.run()
                assert (report.ok, stage.provider.calls) == (1, 5)

        virtual.run(main, seed=seed)
        return waits

    for seed in range(10):
        for wait_s, base_s in zip(waits_of(seed), (2, 4, 8, 16), strict=True):
            assert base_s <= wait_s <= min(1.5 * base_s, 20.0)


def _waits_into(waits: list[float]) -> Callable[[object], None]:
    def hear(event: object) -> None:
        if isinstance(event, RetryScheduled):
            waits.append(event.delay_ms / 1000)

    return hear


def test_after_five_attempts_the_item_is_a_fallback_ignore_zero_no_tags(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        script = _fails("ThrottlingException", 429, times=20)
        async with open_stage(world, tmp_path, script, items=1, most_fallbacks=1.0) as stage:
            report, mail = await stage.run()
            assert (report.ok, report.fallback, stage.provider.calls) == (0, 1, 5)
            assert mail is None
            [verdict] = await _verdicts(stage)
            assert (verdict.outcome, verdict.interest_label) == ("fallback", "IGNORE")
            assert (verdict.confidence, verdict.tags) == (0.0, ())

    virtual.run(main)


@pytest.mark.parametrize("code", ["ValidationException", "AccessDeniedException"])
def test_wrong_parameters_and_missing_rights_are_not_retried(tmp_path: Path, code: str) -> None:
    async def main(world: World) -> None:
        async with open_stage(world, tmp_path, _fails(code), items=2, parallel=1) as stage:
            report, _ = await stage.run()
            assert (report.ok, report.fallback, stage.provider.calls) == (1, 1, 2)
            assert stage.newsletter.meter.retries == 0

    virtual.run(main)


@pytest.mark.parametrize("answer", ["not JSON", '{"interest_label": "URGENT"}', "```json\n{}\n```"])
def test_an_answer_that_cannot_be_parsed_is_asked_for_again(tmp_path: Path, answer: str) -> None:
    """Valid JSON with an unknown label once raised ValueError, which nobody retried."""

    async def main(world: World) -> None:
        upstream = {"script": [{"outcome": "ok", "content": answer}, "ok"]}
        async with open_stage(world, tmp_path, upstream, items=1) as stage:
            report, _ = await stage.run()
            assert (report.ok, stage.provider.calls) == (1, 2)

    virtual.run(main)


# ---- Parallel requests and their spacing ------------------------------------------------------------


def test_requests_are_spaced_over_all_slots_and_no_more_run_than_allowed(tmp_path: Path) -> None:
    """The first design slept inside each slot, so that all slots slept and fired together."""

    async def main(world: World) -> None:
        upstream = {"interval_s": 2.5, "latency_s": 20.0}
        async with open_stage(world, tmp_path, upstream, items=20) as stage:
            report, _ = await stage.run()
            assert report.ok == 20
            assert all(later - earlier >= 2.5 for earlier, later in pairwise(stage.provider.starts))
            assert stage.provider.most_in_flight == 5

    virtual.run(main)


# ---- The time estimates, and Lambda's 15 minutes ----------------------------------------------------


@pytest.mark.parametrize(("parallel", "failing", "estimate_s"), [(2, 0, 450), (2, 10, 600), (3, 0, 303)])
def test_120_items_take_no_longer_than_the_design_estimates(
    tmp_path: Path, parallel: int, failing: int, estimate_s: float
) -> None:
    """60 pairs of 5 s + 2.5 s: 7.5 minutes. With ten items that need three retries: 10. Three at a time: 5, and the last answer."""
    script = ["throttled", "ok", "ok"] * (3 * failing)
    upstream = {"interval_s": 2.5, "latency_s": 5.0, "script": script, "failure_latency_s": 0.1}

    async def main(world: World) -> None:
        async with open_stage(world, tmp_path, upstream, items=120, parallel=parallel) as stage:
            report, _ = await stage.run()
            assert (report.ok, stage.provider.calls) == (120, 120 + 3 * failing)
            assert world.clock.now() <= estimate_s

    virtual.run(main)


def test_the_worst_case_of_17_5_minutes_ends_within_15_and_the_rest_is_judged_later(tmp_path: Path) -> None:
    """The design names the danger and counters with fewer retries; a limit that is planned for needs no such trade."""
    bad_day = {"interval_s": 2.5, "latency_s": 5.0, "failures": {"throttled": 0.6}}

    async def main(world: World) -> None:
        async with open_stage(world, tmp_path, bad_day, items=120, parallel=2) as stage:
            report, mail = await stage.run(time_limit_s=900)
            assert world.clock.now() <= 900
            assert mail is not None
            assert report.ok + report.fallback + report.skipped == 120
            first, calls = report.ok, stage.provider.calls
            assert 0 < first < 120
        async with open_stage(world, tmp_path, items=120, parallel=2) as stage:
            report, _ = await stage.run()
            assert report.ok == 120
            assert stage.provider.calls == 120 - first
        assert calls > first

    virtual.run(main)


# ---- Phase 2 ----------------------------------------------------------------------------------------


def test_a_second_region_judges_what_the_first_has_no_quota_for(tmp_path: Path) -> None:
    """Cross-Region Inference: a region that asks for ten minutes is not waited for."""
    spent = {"failures": {"throttled": 1.0}, "retry_after_s": 600.0}
    second = {"model": "simulated/instant", "answers_by_pattern": simulated_judge()}

    async def main(world: World) -> None:
        async with open_stage(world, tmp_path, spent, others=[second], items=20) as stage:
            report, _ = await stage.run()
            assert report.ok == 20
            assert world.clock.now() < 60
            assert stage.provider.calls < 20, "a few show that it is spent, then a probe now and then"
            assert {verdict.upstream for verdict in await _verdicts(stage)} == {"simulated/simulated/instant"}

    virtual.run(main)


def test_cloudwatch_hears_of_calls_retries_and_fallbacks(tmp_path: Path) -> None:
    """The retry rate is a metric of the design's second phase."""

    async def main(world: World) -> None:
        upstream = {"script": ["throttled"] * 3}
        async with open_stage(world, tmp_path, upstream, items=4) as stage:
            await stage.run()
            told = json.loads(metrics_line(stage.newsletter.meter, now_ms=7))
            assert (told["Calls"], told["Retries"], told["Fallbacks"]) == (7, 3, 0)
            assert told["_aws"]["Timestamp"] == 7

    virtual.run(main)


# ---- Security ---------------------------------------------------------------------------------------


def test_what_is_kept_of_a_failure_holds_no_text_of_the_provider(tmp_path: Path) -> None:
    """A provider's message may quote a key or the prompt: class, status and code are enough."""

    async def main(world: World) -> None:
        upstream = {"answers_by_pattern": {"A queue that holds 0": "sk-secret", **simulated_judge()}}
        async with open_stage(world, tmp_path, upstream, items=4) as stage:
            await stage.run()
            [failed] = [verdict for verdict in await _verdicts(stage) if verdict.failure]
            assert failed.failure == "invalid_output"
            assert "secret" not in str(failed)

    virtual.run(main)
