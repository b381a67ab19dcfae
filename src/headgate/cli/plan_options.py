"""The options of `headgate plan`, and how they and a scenario's file become one scenario."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from headgate.core.call import Lane
from headgate.core.errors import SettingsError
from headgate.planner.scenario import Scenario, read_scenario, read_seconds
from headgate.planner.sweep import read_change
from headgate.planner.weather import read_weather
from headgate.settings.loading import read_tree


def read_length(text: str) -> float:
    try:
        return read_seconds(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from None


def read_outage(text: str) -> tuple[float, float]:
    start, dots, end = text.partition("..")
    if not dots:
        raise typer.BadParameter(f"{text!r:.60} is no outage: write FROM..TO, such as 60s..5min.")
    return read_length(start), read_length(end)


def read_weather_option(text: str) -> tuple[str, Mapping[str, Any]]:
    try:
        return read_weather(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from None


ModelOption = Annotated[
    str | None, typer.Option("--model", help="Which model; needed where there are several.")
]
ScenarioOption = Annotated[
    Path | None, typer.Option("--scenario", metavar="FILE", help="Upstreams and load from a YAML file.")
]
LatencyOption = Annotated[
    str | None,
    typer.Option(
        "--latency", metavar="TIME", help="Time to an answer: 5, 4/12 (median/p99) or '80 tokens/s'."
    ),
]
ThrottledOption = Annotated[
    float | None, typer.Option("--throttled", min=0, max=1, help="Share of calls answered 429 by chance.")
]
FailingOption = Annotated[
    float | None, typer.Option("--failing", min=0, max=1, help="Share of calls answered 503.")
]
UpstreamRpmOption = Annotated[
    int | None, typer.Option("--upstream-rpm", min=1, help="The upstream's limit of requests a minute.")
]
UpstreamTpmOption = Annotated[
    int | None, typer.Option("--upstream-tpm", min=1, help="The upstream's limit of tokens a minute.")
]
OutageOption = Annotated[
    list[Any] | None,
    typer.Option(
        "--outage", parser=read_outage, metavar="FROM..TO", help="The upstream is down; may be repeated."
    ),
]
WeatherOption = Annotated[
    list[Any] | None,
    typer.Option(
        "--weather",
        parser=read_weather_option,
        metavar="NAME=NUMBER",
        help="How the upstream refuses calls: chance=0.1, errors=0.1, quota=20, windows=84/6, in-flight=8, outage=4; may be repeated.",
    ),
]
JobsOption = Annotated[int | None, typer.Option("--jobs", min=1, help="So many jobs.")]
CallsOption = Annotated[
    int | None, typer.Option("--calls", min=1, help="So many direct calls, a caller each.")
]
ManyOption = Annotated[int | None, typer.Option("--many", min=1, help="So many items in one complete_many.")]
PerSecondOption = Annotated[
    float | None, typer.Option("--per-s", help="Arrivals per second; otherwise all at once.")
]
BurstOption = Annotated[int | None, typer.Option("--burst", min=1, help="So many at a time, --every apart.")]
EveryOption = Annotated[
    float | None, typer.Option("--every", parser=read_length, metavar="TIME", help="Between two bursts.")
]
LaneOption = Annotated[Lane | None, typer.Option("--lane", help="Calls are interactive, all else batch.")]
DeadlineOption = Annotated[
    float | None,
    typer.Option("--deadline", parser=read_length, metavar="TIME", help="How long each caller waits."),
]
ComeBackOption = Annotated[
    bool, typer.Option("--come-back", help="A refused caller asks again when it was told to.")
]
TokensInOption = Annotated[int | None, typer.Option("--tokens-in", min=0, help="Tokens of a prompt.")]
TokensOutOption = Annotated[int | None, typer.Option("--tokens-out", min=0, help="Tokens of an answer.")]
FinishByOption = Annotated[
    float | None,
    typer.Option(
        "--finish-by",
        parser=read_length,
        metavar="TIME",
        help="All should be done by then: what is the chance?",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Change a setting for this plan; may be repeated."),
]
SweepOption = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep", metavar="NAME=1..8", help="A row for each value; given twice, for each combination."
    ),
]
PlotOption = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw it, as .png or .svg.")]
RunsOption = Annotated[
    int | None,
    typer.Option(
        "--runs", min=1, max=1000, help="Runs under different seeds; default: as many as are cheap."
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Where chance begins.")]


def gather_scenario(
    file: Path | None,
    weathers: Sequence[tuple[str, Mapping[str, Any]]],
    upstream: Mapping[str, Any],
    load: Mapping[str, Any],
    rest: Mapping[str, Any],
) -> Scenario:
    """The file's scenario, and on top of it what was said on the command line; None was not said."""
    tree = {} if file is None else read_tree(file)
    tree.update(_given(rest))
    if said := _with_weathers(weathers, _given(upstream)):
        described = tree.get("upstream")
        hint = {"retry_after_s": said.pop("retry_after_s", None)}
        tree["upstream"] = {**_given(hint), **(described if isinstance(described, dict) else {}), **said}
        if "latency" not in tree["upstream"]:
            raise SettingsError("say how long the upstream takes: --latency 5, or 4/12 (median/p99)")
    if said := _given(load):
        if not said.keys() & {"jobs", "calls", "many"}:
            raise SettingsError(f"{', '.join(said)}: of what? Say --jobs, --calls or --many, too")
        tree["load"] = said
    if "load" not in tree:
        raise SettingsError("say what will come: --jobs 120, --calls 120, --many 120, or a --scenario file")
    return read_scenario(tree)


def _with_weathers(
    weathers: Sequence[tuple[str, Mapping[str, Any]]], said: Mapping[str, Any]
) -> dict[str, Any]:
    """What the weathers and the other options say of the upstream, each thing once."""
    together = dict(said)
    for name, fields in weathers:
        for field, value in fields.items():
            if field in together and field != "retry_after_s":
                raise SettingsError(f"--weather {name}: {field} is said twice; leave one of the options out")
            together[field] = value
    return together


def read_changes(texts: Sequence[str]) -> dict[str, float]:
    """What `--set` says: one value for each name."""
    changes = {}
    for text in texts:
        name, values = read_change(text)
        if len(values) != 1:
            raise SettingsError(f"--set {text!r:.60}: one value; --sweep takes several")
        changes[name] = values[0]
    return changes


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
