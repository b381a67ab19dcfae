"""The newsletter on the real Bedrock provider over real HTTP: signed, retried once and by one owner, with its bill."""

import asyncio
import json
from pathlib import Path

from apps.newsletter.newsletter_stage import write_feeds
from providers.bedrock_stage import KEYS
from providers.stubs.bedrock import REGION, BedrockStub, refusal, said

import headgate
from headgate.apps.newsletter.judging_model import JudgingModel
from headgate.apps.newsletter.options import NewsletterOptions
from headgate.apps.newsletter.report import Report
from headgate.apps.newsletter.run import Material, Newsletter, Plan

MODEL = "anthropic.claude-haiku-4-5-20251001-v1:0"
ANSWER = {"interest_label": "FYI", "confidence": 0.6, "summary": "Worth a look.", "tags": ["news"]}


async def _run(folder: Path, stub: BedrockStub) -> Report:
    upstream = {"provider": "bedrock", "model": MODEL, "region": REGION, "base_url": stub.url, **KEYS}
    retry = {"max_retries": 4, "first_wait_s": 0.01}
    settings = {"data_dir": str(folder / "data"), "models": {"m": {"upstreams": [upstream], "retry": retry}}}
    chosen = NewsletterOptions(
        feeds=write_feeds(folder / "feeds", 2, 1), local_feeds=True, out=folder / "out"
    )
    prices = headgate.Prices()
    prices.load().join()
    async with headgate.open(settings, env={}, prices=prices) as gateway:
        model = JudgingModel("m", 1, "BEDROCK_MODEL_ID")
        newsletter = Newsletter(gateway, chosen, Material.read(chosen), model)
        report, _ = await newsletter.run(Plan(run_id="r1"))
    return report


def test_a_throttled_article_costs_one_more_call_and_the_bill_comes_from_real_usage(tmp_path: Path) -> None:
    """The SDK's own five attempts times ours were once 25 calls; the first bill was a guess of constants."""
    judged = said(
        {"text": json.dumps(ANSWER)}, usage={"inputTokens": 900, "outputTokens": 140, "totalTokens": 1040}
    )

    async def main() -> Report:
        throttled = refusal(429, "ThrottlingException", "Too many requests")
        async with BedrockStub(throttled, judged, judged) as stub:
            report = await _run(tmp_path, stub)
            assert stub.calls == 3
            return report

    report = asyncio.run(main())
    assert (report.ok, report.input_tokens, report.output_tokens) == (2, 1800, 280)
    assert report.cost_usd is not None
    assert 0.001 < report.cost_usd < 0.01
    assert f"cost: ${report.cost_usd:.4f}, 1,800 tokens in, 280 out" in report.lines()
