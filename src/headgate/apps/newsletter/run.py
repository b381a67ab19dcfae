"""A run, step by step: collect, choose candidates, judge, select, deliver. Each step that costs anything is written down.

The calls are direct ones, not jobs: somebody waits for the run, within a time limit, and a run that ended leaves nothing at work.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Final

import msgspec

import headgate
from headgate.apps.newsletter.collecting import Collector
from headgate.apps.newsletter.contract import Prompts
from headgate.apps.newsletter.delivery import NOTHING, deliver
from headgate.apps.newsletter.feed_list import Feed, read_feeds
from headgate.apps.newsletter.items import DomainCap, Item, dated_by, each_once, newest_first
from headgate.apps.newsletter.judging import Aborted, Judge
from headgate.apps.newsletter.judging_model import JudgingModel
from headgate.apps.newsletter.ledger import Ledger, Run, RunState
from headgate.apps.newsletter.mail import Mail
from headgate.apps.newsletter.meter import Meter
from headgate.apps.newsletter.options import NewsletterOptions
from headgate.apps.newsletter.parsing import check_extra
from headgate.apps.newsletter.profile import Profile, read_profile
from headgate.apps.newsletter.report import Report
from headgate.apps.newsletter.selection import Selected, select
from headgate.apps.newsletter.smtp import NotDelivered
from headgate.apps.newsletter.verdicts import Outcome, Verdict

SAMPLES: Final = Path(str(resources.files(__package__))) / "samples"
CLOSING_S: Final = 10.0
"""Of a time limit, what is kept for selecting, mailing and closing; a tenth of a short one."""
COLLECTING_SHARE: Final = 3
"""Collecting may take a third of what there is."""


@dataclass(frozen=True, slots=True)
class Material:
    """What a run works with, read before anything is asked."""

    profile: Profile
    feeds: Sequence[Feed]

    @classmethod
    def read(cls, options: NewsletterOptions) -> "Material":
        """The samples stand in for what is not set."""
        check_extra()
        sample = options.feeds is None
        feeds = read_feeds(options.feeds or SAMPLES / "feeds.yaml", local=sample or options.local_feeds)
        return cls(read_profile(options.profile or SAMPLES / "profile.yaml"), feeds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is asked of one run."""

    run_id: str
    dry_run: bool = False
    """Everything but delivering: the run stays open, and what was judged stays judged."""
    time_limit_s: float = math.inf


class Newsletter:
    """Runs of one newsletter on one gateway."""

    def __init__(
        self,
        gateway: headgate.Gateway,
        options: NewsletterOptions,
        material: Material,
        model: JudgingModel,
        *,
        utc: Callable[[], datetime] = lambda: datetime.now(UTC),
        told: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> None:
        self.meter = Meter(model.name)
        gateway.listen(self.meter)
        self._gateway = gateway
        self._options = options
        self._material = material
        self._model = model
        self._utc = utc
        self._told = told
        self._ledger = Ledger(gateway)

    async def run(self, plan: Plan) -> tuple[Report, Mail | None]:
        """Begin the run, or go on with it. `Aborted` when nothing should be mailed."""
        ends_at = asyncio.get_running_loop().time() + plan.time_limit_s
        until = ends_at - min(CLOSING_S, plan.time_limit_s / 10) if ends_at < math.inf else ends_at
        run = await self._ledger.run(plan.run_id)
        if run is None or run.unread:
            run = await self._begin(plan, until)
        try:
            self._check_feeds(run)
            verdicts = await self._judge(run, until)
            return await self._finish(run, verdicts, ends_at, dry_run=plan.dry_run)
        except (Aborted, NotDelivered) as error:
            await self._ledger.save_run(msgspec.structs.replace(run, state=RunState.ABORTED, why=str(error)))
            raise

    async def _begin(self, plan: Plan, until: float) -> Run:
        left_s = until - asyncio.get_running_loop().time()
        options = self._options
        collector = Collector(self._ledger, private=options.private_feeds, spacing_s=options.host_spacing_s)
        within_s = None if left_s == math.inf else left_s / COLLECTING_SHARE
        collected = await collector.collect(self._material.feeds, within_s=within_s)
        now = self._utc()
        found = [dated_by(now, item) for one in collected for item in one.items]
        run = Run(
            id=plan.run_id,
            started_at=now,
            dry_run=plan.dry_run,
            items=tuple(await self._candidates(found)),
            feeds=tuple(one.report for one in collected),
            collected=len(found),
        )
        await self._ledger.save_run(run)
        return run

    async def _candidates(self, found: Sequence[Item]) -> list[Item]:
        cap = DomainCap(self._options.candidates_per_domain)
        chosen: list[Item] = []
        for item in each_once(newest_first(found)):
            if len(chosen) == self._options.candidates:
                break
            if not await self._ledger.is_seen(item) and cap.admits(item):
                chosen.append(item)
        return chosen

    def _check_feeds(self, run: Run) -> None:
        if run.unread:
            first = run.feeds[0]
            raise Aborted(
                f"none of the {len(run.feeds)} feeds could be read; the first, {first.feed}: {first.error}."
            )

    async def _judge(self, run: Run, until: float) -> Mapping[str, Verdict]:
        judge = Judge(
            gateway=self._gateway,
            ledger=self._ledger,
            meter=self.meter,
            prompts=Prompts(self._material.profile),
            model=self._model,
            run_id=run.id,
            most_fallbacks=self._options.most_fallbacks,
            until=until,
            told=self._told,
            verdicts=_final(await self._ledger.verdicts(run)),
        )
        await judge.judge(run.items)
        outcomes = {verdict.outcome for verdict in judge.verdicts.values()}
        if Outcome.SKIPPED in outcomes and Outcome.OK not in outcomes:
            raise Aborted(f"none of the {len(run.items)} items was judged within the time limit.")
        return judge.verdicts

    async def _finish(
        self, run: Run, verdicts: Mapping[str, Verdict], ends_at: float, *, dry_run: bool
    ) -> tuple[Report, Mail | None]:
        options = self._options
        selected = select(run.items, verdicts, most=options.selected, per_domain=options.selected_per_domain)
        earlier = {item_id for part in run.parts for item_id in part}
        fresh = [one for one in selected if one.item.id not in earlier]
        mail = self._mail(run, fresh, Report.of(run, verdicts, selected=len(selected))) if fresh else None
        delivered = NOTHING
        if not dry_run:
            if mail is not None:
                within_s = ends_at - asyncio.get_running_loop().time()
                delivered = await deliver(mail, options, within_s=within_s)
            judged = [item for item in run.items if verdicts[item.id].outcome is Outcome.OK]
            # What was only simulated is news for the first run with a real model.
            await self._ledger.mark_seen(run.id, [item for item in judged if not verdicts[item.id].simulated])
            run = _delivered(run, fresh, mailed=delivered.mailed, whole=len(judged) == len(run.items))
            await self._ledger.save_run(run)
        return Report.of(run, verdicts, selected=len(selected), delivered=delivered), mail

    def _mail(self, run: Run, selected: Sequence[Selected], report: Report) -> Mail:
        return Mail(
            run_id=run.id,
            part=len(run.parts) + 1,
            title=self._options.title,
            date=run.started_at,
            selected=selected,
            note=report.reader_words,
        )


def _final(verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
    return {item_id: verdict for item_id, verdict in verdicts.items() if verdict.outcome is Outcome.OK}


def _delivered(run: Run, fresh: Sequence[Selected], *, mailed: bool, whole: bool) -> Run:
    part = (tuple(one.item.id for one in fresh),) if fresh else ()
    where = {"mailed": (*run.mailed, *part)} if mailed else {"written": (*run.written, *part)}
    state = RunState.DELIVERED if whole else RunState.PARTIAL
    return msgspec.structs.replace(run, state=state, why=None, **where)
