"""`headgate demo`: the storm on a screen, ending with a verdict."""

import asyncio
import tempfile
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headgate import wiring
from headgate.cli import takeover
from headgate.cli.storm import SETTINGS, Books, Plan, Verdict, blow, judge
from headgate.dispatch.upstream import Upstream
from headgate.gateway import Gateway

FRAMES_PER_S = 12
_SHADES = {"answered": "green", "refused": "yellow", "expired": "yellow", "failed": "red", "cancelled": "dim"}


def command(
    calls: Annotated[int, typer.Option(min=1, max=100_000, help="How many calls the storm has.")] = 400,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="How long new calls keep coming.")] = 10.0,
    jobs: Annotated[int, typer.Option(min=2, max=10_000, help="How many durable jobs follow.")] = 80,
    seed: Annotated[int, typer.Option(min=0, help="Where the storm's chance begins.")] = 7,
) -> None:
    """A storm of calls on upstreams that throttle, fail and go down; then durable jobs whose worker is killed.

    Exit code 0 only if nothing was lost and nothing was done twice.
    """
    console = Console()
    verdict = asyncio.run(run(Plan(calls=calls, seed=seed, seconds=seconds), console))
    outcome = asyncio.run(takeover.run(console, jobs=jobs, seed=seed))
    raise typer.Exit(0 if verdict.holds and outcome.holds else 1)


async def run(plan: Plan, console: Console) -> Verdict:
    with tempfile.TemporaryDirectory(prefix="headgate-demo-") as folder:
        settings = _seeded({**SETTINGS, "data_dir": folder}, plan.seed)
        async with wiring.open(settings, env={}) as gateway:
            books = Books(plan.calls)
            gateway.listen(books.hear)
            _introduce(console, plan)
            await _show(gateway, plan, books, console)
    verdict = judge(books)
    _conclude(console, books, verdict)
    return verdict


async def _show(gateway: Gateway, plan: Plan, books: Books, console: Console) -> None:
    storm = asyncio.create_task(blow(gateway, plan, books))
    if not console.is_terminal:
        await storm
        console.print(_upstreams(gateway))
        return
    with Live(console=console, refresh_per_second=FRAMES_PER_S, transient=False) as live:
        while not storm.done():
            live.update(_screen(gateway, books))
            await asyncio.wait({storm}, timeout=1 / FRAMES_PER_S)
        live.update(_screen(gateway, books))
    await storm


def _introduce(console: Console, plan: Plan) -> None:
    console.print(
        f"[bold]{plan.calls} calls[/] in {plan.seconds:g} s, a quarter of them at once, to an upstream that throttles,"
        " fails and goes down; behind it a flaky one. No keys, no network.\n"
    )


def _screen(gateway: Gateway, books: Books) -> RenderableType:
    return Group(_upstreams(gateway), "", _ends(books), Text(books.latest[:78], style="dim"))


def _upstreams(gateway: Gateway) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("upstream", "slots", "waiting", "batch", "calls", "budget", "state"):
        left = heading in {"upstream", "slots", "state"}
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for upstream in gateway.routes.find("storm").upstreams:
        table.add_row(*_row(upstream))
    return table


def _row(upstream: Upstream) -> list[RenderableType]:
    admission = upstream.gate.admission
    slots = Text("█" * admission.in_use + "░" * max(0, admission.free))
    return [
        upstream.name,
        slots,
        str(len(admission.turns.interactive)),
        str(len(admission.turns.batch)),
        str(getattr(upstream.provider, "calls", 0)),
        f"{upstream.budget.tokens:.0f}",
        _state(upstream),
    ]


def _state(upstream: Upstream) -> Text:
    if upstream.blocked():
        return Text("breaker open", style="red")
    if upstream.paused():
        return Text("paused", style="yellow")
    return Text("ready", style="green")


def _ends(books: Books) -> Table:
    table = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=books.planned, completed=books.ended, width=30)
    counts = Text("  ").join(
        Text(f"{count} {end}", style=_SHADES.get(end, "")) for end, count in sorted(books.ends.items())
    )
    table.add_row(Text("ended"), bar, counts)
    return table


def _conclude(console: Console, books: Books, verdict: Verdict) -> None:
    ends = " + ".join(f"{count} {end}" for end, count in sorted(books.ends.items()))
    amplification = books.attempts / max(1, books.asked)
    console.print(f"\n{books.asked} asked = {ends}")
    console.print(
        f"{books.attempts} provider calls ({amplification:.2f} per request), {books.retries} retries,"
        f" {books.fallbacks} fallbacks"
    )
    if books.promised_s:
        console.print(
            f"the refused were told to come back in {min(books.promised_s):.1f}–{max(books.promised_s):.1f} s"
        )
    if verdict.holds:
        console.print("[bold green]PASS[/] nothing lost, nothing answered twice, every answer with its asker")
    else:
        console.print(
            f"[bold red]FAIL[/] {verdict.lost} lost, {verdict.doubled} answered twice,"
            f" {verdict.misrouted} with the wrong asker"
        )


def _seeded(settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    models = {
        name: {**model, "upstreams": [{**upstream, "seed": seed} for upstream in model["upstreams"]]}
        for name, model in settings["models"].items()
    }
    return {**settings, "models": models}
