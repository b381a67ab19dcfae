"""What a run came to, as one record, and its words."""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Self

import msgspec

from headgate.apps.newsletter.delivery import NOTHING, Delivered
from headgate.apps.newsletter.ledger import Run, RunState
from headgate.apps.newsletter.verdicts import Outcome, Verdict


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Fallbacks and what was skipped are counted apart from what was judged, always."""

    run_id: str
    started_at: datetime
    state: RunState
    why: str | None
    """Why it was aborted."""
    feeds: int
    feed_errors: tuple[str, ...]
    """What failed feeds said, each with its name."""
    collected: int
    candidates: int
    ok: int
    fallback: int
    skipped: int
    selected: int
    mailed: int
    """Items in mails that a mail server took."""
    written: int
    """Items in mails that are files only."""
    judges: tuple[str, ...]
    """The upstreams that judged, the busiest first."""
    simulated: int
    """Of those judged, how many the simulated provider judged."""
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    """None when the price of an answer is not known."""
    files: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    """Receivers whom the mail server did not take."""

    @classmethod
    def of(
        cls, run: Run, verdicts: Mapping[str, Verdict], *, selected: int, delivered: Delivered = NOTHING
    ) -> Self:
        known = [verdict for item in run.items if (verdict := verdicts.get(item.id))]
        counts = Counter(verdict.outcome for verdict in known)
        answered = [verdict for verdict in known if verdict.outcome is Outcome.OK]
        costs = [verdict.cost_usd for verdict in answered]
        return cls(
            run_id=run.id,
            started_at=run.started_at,
            state=run.state,
            why=run.why,
            feeds=len(run.feeds),
            feed_errors=tuple(f"{feed.feed}: {feed.error}" for feed in run.feeds if feed.error is not None),
            collected=run.collected,
            candidates=len(run.items),
            ok=counts[Outcome.OK],
            fallback=counts[Outcome.FALLBACK],
            skipped=counts[Outcome.SKIPPED],
            selected=selected,
            mailed=sum(map(len, run.mailed)),
            written=sum(map(len, run.written)),
            judges=tuple(
                name for name, _ in Counter(filter(None, (v.upstream for v in answered))).most_common()
            ),
            simulated=sum(verdict.simulated for verdict in answered),
            input_tokens=sum(verdict.input_tokens for verdict in answered),
            output_tokens=sum(verdict.output_tokens for verdict in answered),
            cost_usd=None if None in costs else sum(cost for cost in costs if cost is not None),
            files=tuple(map(str, delivered.files)),
            refused=delivered.refused,
        )

    @property
    def judged_words(self) -> str:
        return f"{self.ok} judged, {self.fallback} without a verdict, {self.skipped} skipped for lack of time"

    @property
    def judge_words(self) -> str:
        return ", ".join(self.judges) or "none"

    @property
    def cost_words(self) -> str:
        price = "price unknown" if self.cost_usd is None else f"${self.cost_usd:.4f}"
        return f"{price}, {self.input_tokens:,} tokens in, {self.output_tokens:,} out"

    @property
    def reader_words(self) -> str:
        """For whoever reads the mail: what it was chosen from, and what is missing."""
        missing = {
            "could not be judged": self.fallback,
            "had no time left to be judged": self.skipped,
        }
        notes = [f"{_counted(count, 'item')} {what}." for what, count in missing.items() if count]
        if self.feed_errors:
            notes.append(f"{_counted(len(self.feed_errors), 'feed')} could not be read.")
        if self.simulated < self.ok:
            notes.append(
                f"A language model wrote the summaries ({self.judge_words}): open the article before you act on one."
            )
        if self.simulated:
            notes.append(f"Simulated verdicts: {self.simulated:,}. No language model read those items.")
        chosen = f"Chosen from {_counted(self.candidates, 'new item')} of {_counted(self.feeds, 'feed')}."
        return " ".join([chosen, *notes])

    def lines(self) -> list[str]:
        failed = f", {len(self.feed_errors)} of them failed" if self.feed_errors else ""
        written = (
            f"; {self.written} in files only: apps.newsletter.smtp_host is not set" if self.written else ""
        )
        simulated = (
            f"; {self.simulated} verdicts are simulated, no language model read those items"
            if self.simulated
            else ""
        )
        lines = [
            f"run {self.run_id}: {self.state}",
            f"feeds: {self.feeds}{failed}; {self.collected} items, {self.candidates} candidates",
            f"items: {self.judged_words}",
            f"judge: {self.judge_words}{simulated}",
            f"mail: {self.selected} selected, {self.mailed} mailed{written}",
            f"cost: {self.cost_words}",
        ]
        if self.refused:
            lines.append(f"the mail server does not take mail for {', '.join(self.refused)}: check mail_to")
        return [*lines, *self.files]


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
