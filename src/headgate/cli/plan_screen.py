"""A plan on the screen: what was asked, what came out, what to change; or the table of a sweep."""

import textwrap
from collections.abc import Iterator

from rich.text import Text

from headgate.cli.plan_words import (
    amount,
    beyond_in_words,
    chance_in_words,
    learned_in_words,
    length,
    limit_in_words,
    load_in_words,
    percent,
    settings_in_words,
    shape_in_words,
    step_in_words,
)
from headgate.cli.screen import stdout
from headgate.cli.tables import Column, lay_out
from headgate.cli.tables import Row as TableRow
from headgate.cli.words import count_of
from headgate.planner.plan import Plan
from headgate.planner.summary import Summary, unit_for
from headgate.planner.sweep import Row

LABEL = 11
WIDEST = 100


def show_plan(plan: Plan) -> None:
    screen = stdout()
    width = min(screen.width, WIDEST)
    for label, words in (*_question(plan), *_answer(plan)):
        screen.print(_entry(label, words, width))
    if plan.summary is not None and plan.scenario.refuses:
        screen.print()
        for line in _compared(plan.summary, plan.alone, width):
            screen.print(line)
    for label, words in (*_limit(plan), *_advice(plan)):
        screen.print(_entry(label, words, width))
    if plan.rows:
        screen.print()
        for line in _table(plan, width):
            screen.print(line)


def _entry(label: str, words: str, width: int) -> Text:
    lines = textwrap.wrap(words, max(20, width - LABEL), break_on_hyphens=False) or [""]
    text = Text(label.ljust(LABEL), "dim")
    return text.append(f"\n{' ' * LABEL}".join(lines)) if words else Text("")


def _question(plan: Plan) -> Iterator[tuple[str, str]]:
    scenario = plan.scenario
    yield "model", plan.model
    for load in scenario.loads:
        yield "load", load_in_words(load)
    if scenario.upstream is not None:
        yield "upstream", shape_in_words(scenario.upstream, scenario.tokens_out)
    for name, shape in scenario.upstreams.items():
        yield "upstream", f"{name}: {shape_in_words(shape, scenario.tokens_out)}"
    yield "settings", settings_in_words(plan.settings, scenario)


def _answer(plan: Plan) -> Iterator[tuple[str, str]]:
    if (summary := plan.summary) is None:
        return
    yield "", ""
    yield "finished", _finished(summary)
    yield "ends", ", ".join(f"{amount(count)} {how}" for how, count in summary.ends.items())
    for waits in summary.waits:
        yield "waits", f"{waits.lane}: p50 {length(waits.p50_s)}, p99 {length(waits.p99_s)}"
    yield "calls", _calls(summary)
    yield "refusals", _refusals(summary)
    yield "cost", _cost(plan, summary)
    if summary.missed_deadline is not None:
        yield "deadline", _missed(*summary.missed_deadline)
    if summary.late is not None:
        yield "finish by", chance_in_words(summary.late, plan.scenario)


def _compared(summary: Summary, alone: Summary | None, width: int) -> Iterator[Text]:
    """How callers fare in this weather: through the gateway, and with the SDK alone."""
    headings = ("answered", "p50 answer", "p99 answer", "calls/answer", "429s")
    columns = [Column(""), *(Column(heading, right=True) for heading in headings)]
    fares = [("Headgate", summary), *([("SDK alone", alone)] if alone is not None else [])]
    rows = [TableRow((Text(name, "dim"), *map(Text, _fare(fare)))) for name, fare in fares]
    yield from lay_out(columns, rows, width=width, note="")


def _fare(summary: Summary) -> Iterator[str]:
    yield f"{amount(summary.answered)} of {summary.items:,}"
    for seconds in (summary.p50_s, summary.p99_s):
        yield "-" if seconds is None else length(seconds)
    yield f"{summary.calls / summary.answered:.2f}" if summary.answered else "-"
    yield amount(summary.throttled)


def _limit(plan: Plan) -> Iterator[tuple[str, str]]:
    if (summary := plan.summary) is None:
        return
    yield "", ""
    if plan.scenario.refuses:
        for learned in summary.learned:
            name = f"{learned.upstream}: " if len(summary.learned) > 1 else ""
            yield "learned", name + learned_in_words(learned, summary.runs)
    yield "limit", limit_in_words(summary, plan.settings)


def _finished(summary: Summary) -> str:
    runs = count_of(summary.runs, "run")
    if not summary.finished:
        return f"not within {length(summary.span_high_s)} ({runs})"
    if summary.span_high_s - summary.span_low_s < 0.01 * summary.span_s:
        return f"{length(summary.span_s)} ({runs})"
    return f"{length(summary.span_s)} ({runs}: {length(summary.span_low_s)} to {length(summary.span_high_s)})"


def _missed(mean: float, least: float, most: float) -> str:
    if not most:
        return "nobody who has one misses it"
    spread = f" ({percent(least)} to {percent(most)} over the runs)" if least < most else ""
    return f"{percent(mean)} of those who have one miss it{spread}"


def _calls(summary: Summary) -> str:
    per_item = f"{amount(summary.calls)} to providers, {summary.calls / summary.items:.2f} per item"
    back = f", {amount(summary.put_back)} put back" if summary.put_back else ""
    return f"{per_item}; {amount(summary.retries)} retries{back}, {amount(summary.fallbacks)} fallbacks"


def _refusals(summary: Summary) -> str:
    if not summary.refusals:
        return "none"
    return ", ".join(f"{amount(count)} {code}" for code, count in summary.refusals.items())


def _cost(plan: Plan, summary: Summary) -> str:
    tokens = f"{plan.scenario.tokens_in} tokens in, {plan.scenario.tokens_out} out per call"
    if summary.cost_usd is None:
        return f"unknown: no price for this model ({tokens})"
    return (
        f"${summary.cost_usd:,.2f} ({tokens})"
        if summary.cost_usd >= 1
        else f"${summary.cost_usd:.4f} ({tokens})"
    )


def _advice(plan: Plan) -> Iterator[tuple[str, str]]:
    if (advice := plan.advice) is None:
        return
    for number, step in enumerate(advice.steps):
        yield "change" if not number else "", step_in_words(step)
    if not advice.steps:
        yield "change", "nothing: no setting that was tried makes it better"
    elif beyond := beyond_in_words(advice, plan.settings):
        yield "", beyond
    for step in advice.others:
        yield "or", step_in_words(step)
    if advice.in_vain:
        yield "no gain", ", ".join(f"{change.setting} {change.after:g}" for change in advice.in_vain)
    if advice.tried_items < plan.scenario.count:
        yield "", f"(changes were tried on the first {advice.tried_items:,} of {plan.scenario.count:,} items)"


def _table(plan: Plan, width: int) -> Iterator[Text]:
    """All lengths of time in one unit: rows are there to be compared."""
    unit_s, unit = unit_for(max(row.summary.span_high_s for row in plan.rows))
    late = plan.scenario.finish_by_s is not None
    headings = ("finished", "least", "most", "p99 wait", "lost", "calls/item", *(["late"] if late else []))
    columns = [Column(heading, right=True) for heading in (*plan.rows[0].changes, *headings)]
    rows = [TableRow(tuple(map(Text, _cells(row, unit_s)))) for row in plan.rows]
    runs = count_of(plan.rows[0].summary.runs, "run")
    yield Text(f"{runs} per row; times in {unit}", "dim")
    yield from lay_out(columns, rows, width=width, note="")


def _cells(row: Row, unit_s: float) -> Iterator[str]:
    summary = row.summary
    yield from (f"{value:g}" for value in row.changes.values())
    for seconds in (summary.span_s, summary.span_low_s, summary.span_high_s, summary.p99_wait_s):
        yield f"{seconds / unit_s:,.1f}"
    yield amount(summary.lost)
    yield f"{summary.calls / summary.items:.2f}"
    if summary.late is not None:
        yield f"{summary.late.times} of {summary.late.of}"
