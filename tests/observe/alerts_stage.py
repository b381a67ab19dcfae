"""A real gateway with its alerts in virtual time, and what they told: lines in the log, and deliveries as jobs."""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from jobstage import JobStage, JobStages
from stage import USER

import headgate
from headgate import Context, wiring
from headgate.core.job import Job
from headgate.core.ports.clock import Clock
from headgate.observe.alerts import JUDGE_EVERY_S, Alerts
from headgate.wiring.alerting import alerting

NOWHERE = "http://127.0.0.1:9/hook"
TEN_MINUTES_S = 600.0
CALM_S = 300.0
ROUND_S = JUDGE_EVERY_S + 1


@headgate.task("reject")
async def reject(ctx: Context, given: Any) -> None:
    raise headgate.Reject("as asked")


@headgate.task("work", model="m")
async def work(ctx: Context, given: Any) -> None:
    await ctx.llm.complete(messages=USER)


@dataclass
class Watched:
    """A gateway, its alerts, and what became known of them."""

    stage: JobStage
    alerts: Alerts
    log: pytest.LogCaptureFixture

    @property
    def active(self) -> list[tuple[str, str]]:
        return [(alert.rule, alert.subject) for alert in self.alerts.active()]

    @property
    def over(self) -> list[tuple[str, str]]:
        return [(alert.rule, alert.subject) for alert in self.alerts.recent()]

    @property
    def warnings(self) -> list[str]:
        lines = [record.getMessage() for record in self.log.records if record.levelno == logging.WARNING]
        return [line for line in lines if line.startswith("alert ")]

    async def deliveries(self) -> list[Job]:
        """Those that were written, oldest first."""
        return [*reversed(await self.stage.gateway.webhooks.list())]

    async def sleep(self, seconds: float) -> None:
        await self.stage.world.clock.sleep(seconds)

    async def expect_one_incident(self, rule: str, subject: str = "") -> None:
        """It is over: one line, one webhook when it fired and one when it cleared.

        Where no worker runs, the deliveries themselves are late after a while: that is another alert, and a true one.
        """
        assert (rule, subject) not in self.active
        assert [over for over in self.over if over[0] == rule] == [(rule, subject)]
        assert len([line for line in self.warnings if f"rule={rule} subject={subject or '-'}:" in line]) == 1
        told = [job.metadata["event"] for job in await self.deliveries() if job.metadata["subject"] == rule]
        assert told == ["alert.fired", "alert.cleared"]


@asynccontextmanager
async def watched(
    stages: JobStages,
    log: pytest.LogCaptureFixture,
    *upstreams: Mapping[str, Any],
    webhooks: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
    **settings: Any,
) -> AsyncIterator[Watched]:
    """As `stages.open`, with alerts that judge until the block ends, by a clock of their own where one is given."""
    log.set_level(logging.INFO)
    told = {"url": NOWHERE, "events": ["alert"], **(webhooks or {})}
    stage = await stages.open(*upstreams, webhooks=told, **settings)
    await stage.gateway.durable.start()
    kept: dict[str, Any] = {name: settings[name] for name in ("alerts", "apps") if name in settings}
    read = wiring.read_settings({"data_dir": str(stages.folder), **kept}, env={})
    async with alerting(read, stage.gateway, clock or stages.world.clock) as alerts:
        yield Watched(stage, alerts, log)
