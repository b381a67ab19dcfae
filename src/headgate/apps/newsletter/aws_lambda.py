"""The newsletter as an AWS Lambda function: `headgate.apps.newsletter.aws_lambda.handler`.

It raises when the run fails, so that Lambda's retries and alarms see it, and always prints one line of CloudWatch metrics.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

import headgate
from headgate.apps.newsletter.meter import Meter
from headgate.apps.newsletter.opening import check_run_id, open_newsletter, options_of
from headgate.apps.newsletter.report import Report
from headgate.apps.newsletter.run import Plan

NAMESPACE: Final = "Headgate/Newsletter"
RESERVE_S: Final = 5.0
"""Kept back from Lambda's own limit, which kills."""


class LambdaContext(Protocol):
    """What we ask of Lambda's context."""

    aws_request_id: str

    def get_remaining_time_in_millis(self) -> int: ...


def handler(event: object, context: LambdaContext) -> dict[str, Any]:
    """Run once. The event may say `dry_run` and `run_id`.

    Without a `run_id`, the event's own id names the run: when Lambda repeats a failed event, the run goes on.
    """
    if not isinstance(event, Mapping) or not isinstance(event.get("dry_run", False), bool):
        raise headgate.InvalidRequest(
            'the event must be an object, and its "dry_run" true or false', param="dry_run"
        )
    run_id = str(event.get("run_id") or event.get("id") or context.aws_request_id)
    plan = Plan(
        run_id=check_run_id(run_id),
        dry_run=event.get("dry_run", False),
        time_limit_s=max(0.0, context.get_remaining_time_in_millis() / 1000 - RESERVE_S),
    )
    report = asyncio.run(_run(plan))
    return {
        "message": f"{report.state}: {report.judged_words}",
        "run_id": report.run_id,
        "collected_count": report.collected,
        "judged_count": report.ok,
        "fallback_count": report.fallback,
        "skipped_count": report.skipped,
        "final_selected_count": report.selected,
        "judges": list(report.judges),
        "simulated_count": report.simulated,
        "notification_sent": report.mailed > 0,
    }


async def _run(plan: Plan) -> Report:
    settings = headgate.read_settings()
    # Only the temporary folder can be written to; what is absolute was meant so.
    folder = Path(tempfile.gettempdir())
    settings = replace(settings, data_dir=folder / settings.data_dir)
    options = options_of(settings)
    options = replace(options, out=folder / options.out)
    async with open_newsletter(settings, options, env=os.environ) as newsletter:
        try:
            report, _ = await newsletter.run(plan)
        finally:
            print(metrics_line(newsletter.meter, now_ms=time.time_ns() // 1_000_000), flush=True)  # noqa: T201 - how metrics leave a Lambda
    return report


def metrics_line(meter: Meter, *, now_ms: int) -> str:
    """CloudWatch's embedded metric format: a log line that becomes metrics."""
    counts = {"Calls": meter.calls, "Retries": meter.retries, "Fallbacks": meter.fallbacks}
    metrics = [{"Name": name, "Unit": "Count"} for name in counts]
    told = {"Namespace": NAMESPACE, "Dimensions": [[]], "Metrics": metrics}
    return msgspec.json.encode(
        {"_aws": {"Timestamp": now_ms, "CloudWatchMetrics": [told]}, **counts}
    ).decode()
