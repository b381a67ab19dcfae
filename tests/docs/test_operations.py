"""What ships for operations fits the code: rules and dashboard ask for metrics and labels that exist, the runbook's commands parse."""

import asyncio
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from observe.metrics_stage import Page, metrics_of

from headgate import wiring
from headgate.cli.app import app
from headgate.core.alert_rules import (
    BREAKER_OPEN_S,
    CALM_S,
    FAILED_RUNS,
    FEWEST_SAMPLES,
    LEAST_FREE_GB,
    ROOM_AGAIN_GB,
    STORE_DOWN_S,
    AlertRules,
    Rule,
    words,
)
from headgate.core.alerts import Reading
from headgate.core.outcomes import REFUSED, Outcome
from headgate.observe.alerts import JUDGE_EVERY_S, MOST_REMEMBERED
from headgate.observe.loop_lag import TICK_S, WINDOW_S

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load((ROOT / "ops/prometheus-alerts.yml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((ROOT / "ops/grafana-dashboard.json").read_text())
RUNBOOK = (ROOT / "docs/operations.md").read_text()
PAGE = (ROOT / "docs/reference/alerts.md").read_text()
FOREIGN = {"up": {"job", "instance"}, "process_resident_memory_bytes": {"job", "instance"}}
"""What Prometheus itself adds to what we tell."""
SELECTOR = re.compile(r"\b((?:headgate_|process_|up\b)\w*)(?:\{([^}]*)\})?")
BY = re.compile(r"by \(([^)]*)\)")


def _panels() -> Iterator[dict[str, Any]]:
    for panel in DASHBOARD["panels"]:
        if panel["type"] != "row":
            yield panel


EXPRESSIONS = {rule["alert"]: rule["expr"] for rule in RULES} | {
    f"{panel['title']} {target['refId']}": target["expr"]
    for panel in _panels()
    for target in panel["targets"]
}


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, set[str]]:
    """The names of all samples that a real gateway's page can have, and their labels."""

    async def main() -> dict[str, set[str]]:
        folder = tmp_path_factory.mktemp("operations")
        gateway = wiring.build(wiring.read_settings({"data_dir": str(folder)}, env={}))
        await gateway.durable.start()
        metrics = metrics_of(gateway)
        await gateway.complete(model="simulated/instant", messages=[{"role": "user", "content": "hello"}])
        async with asyncio.timeout(10):
            while not Page(metrics.exposition()).has("headgate_jobs_history"):  # noqa: ASYNC110 - the looks are the page's own
                await asyncio.sleep(0.01)
        names: dict[str, set[str]] = {}
        for family in metrics.collect():
            labels = {*family.labels}
            if family.kind == "histogram":
                names |= {f"{family.name}_{part}": labels for part in ("sum", "count")}
                names[f"{family.name}_bucket"] = labels | {"le"}
            else:
                names[family.name] = labels
        await metrics.aclose()
        await gateway.aclose(0.0)
        return names

    return {**asyncio.run(main()), **FOREIGN}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_every_metric_and_label_asked_for_exists(name: str, exposed: Mapping[str, set[str]]) -> None:
    expression = EXPRESSIONS[name]
    found = SELECTOR.findall(expression)
    assert found, expression
    known: set[str] = set()
    for metric, matchers in found:
        assert metric in exposed, metric
        assert set(re.findall(r"(\w+)\s*[!=]~?", matchers)) <= exposed[metric], expression
        known |= exposed[metric]
    for names in BY.findall(expression):
        assert {label.strip() for label in names.split(",")} <= known, expression
    assert expression.count("(") == expression.count(")")


def test_the_dashboard_shows_every_metric_it_should(exposed: Mapping[str, set[str]]) -> None:
    """What nobody looks at need not be told: all but a few counters that only explain others."""
    asked = {metric for name in EXPRESSIONS for metric, _ in SELECTOR.findall(EXPRESSIONS[name])}
    unseen = {re.sub(r"_(total|sum|count|bucket)$", "", name) for name in exposed.keys() - asked}
    unseen -= {re.sub(r"_(total|sum|count|bucket)$", "", name) for name in asked}
    assert unseen == {
        "headgate_accepting",
        "headgate_breaker_changes",
        "headgate_jobs_accepted",
        "headgate_jobs_history",
        "headgate_jobs_look_age_seconds",
        "headgate_model_paused",
        "headgate_pauses",
        "headgate_preemptions",
        "headgate_replayed_after_seconds",
        "headgate_retries_scheduled",
        "headgate_stored_bytes",
        "headgate_stored_bytes_max",
    }


def test_legends_name_labels_that_their_expression_keeps() -> None:
    for panel in _panels():
        for target in panel["targets"]:
            asked = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            kept = {label.strip() for names in BY.findall(target["expr"]) for label in names.split(",")}
            assert asked <= (kept or {"instance"}), (panel["title"], target)


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        mine = {
            (column, line)
            for column in range(place["x"], place["x"] + place["w"])
            for line in range(place["y"], place["y"] + place["h"])
        }
        assert not mine & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        cells |= mine
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_prometheus_asks_for_the_same_thresholds_as_the_gateway_itself() -> None:
    usual = AlertRules()
    assert EXPRESSIONS["HeadgateDeadLetters"].endswith(f"> {usual.dead_letters_per_hour:g}")
    for name, threshold in (
        ("HeadgateRetryFailures", usual.retry_failure_rate),
        ("HeadgateDuplicateKeys", usual.duplicate_key_rate),
        ("HeadgateJobDelay", usual.job_delay_s),
        ("HeadgateRejections", usual.rejected_rate),
        ("HeadgateErrors", usual.error_rate),
        ("HeadgateServerErrors", usual.server_error_rate),
    ):
        assert f"> {threshold:g} and " in EXPRESSIONS[name]
        assert EXPRESSIONS[name].endswith(f">= {FEWEST_SAMPLES}")
    assert EXPRESSIONS["HeadgateLoopLag"].endswith(f"> {usual.loop_lag_s:g}")
    assert (
        next(rule for rule in RULES if rule["alert"] == "HeadgateBreakerOpen")["for"]
        == f"{BREAKER_OPEN_S / 60:g}m"
    )


def test_every_rule_has_its_part_of_the_runbook() -> None:
    headings = set(re.findall(r"^## (\w+)$", RUNBOOK, re.MULTILINE))
    assert headings == {*Rule, "HeadgateDown"}
    for rule in RULES:
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert (ROOT / page).exists()
        assert anchor in {heading.lower() for heading in headings}
    for part in re.split(r"^## ", RUNBOOK, flags=re.MULTILINE)[2:]:
        assert [f"**{word}.**" in part for word in ("Means", "Look", "Do")] == [True] * 3, part[:40]


def _commands() -> list[str]:
    lines = [
        line for block in re.findall(r"```sh\n(.*?)```", RUNBOOK, re.DOTALL) for line in block.splitlines()
    ]
    said = re.findall(r"`(headgate [^`]+)`", RUNBOOK)
    return sorted({*lines, *said})


@pytest.mark.parametrize("line", _commands())
def test_the_runbook_s_commands_exist(line: str) -> None:
    _parse(line)


def test_the_commands_that_alerts_name_exist() -> None:
    for rule in Rule:
        for line in re.findall(r"`(headgate [^`]+)`", words(Reading(rule, 1.0, "x"), 0.0)):
            _parse(line)


def _parse(line: str) -> None:
    command: Any = typer.main.get_command(app)
    words = shlex.split(line)[1:]
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    assert command.make_context(line, words).args == []


def test_the_alerts_page_names_every_rule_with_its_numbers() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|", PAGE, re.MULTILINE))
    assert rows.keys() == set(Rule)
    usual = AlertRules()
    assert f"(`{usual.dead_letters_per_hour:g}`)".replace("`", "") in rows["dead_letters"]
    assert f"({usual.retry_failure_rate:.0%})".replace("%", " %") in rows["retry_failures"]
    assert f"({usual.duplicate_key_rate:.0%})".replace("%", " %") in rows["duplicate_keys"]
    assert f"({usual.job_delay_s:g} s)" in rows["job_delay"]
    assert f"more than {BREAKER_OPEN_S:g} s" in rows["breaker_open"]
    assert f"more than {STORE_DOWN_S:g} s" in rows["store_down"]
    assert f"less than {LEAST_FREE_GB:g} GB" in rows["disk_full"]
    assert f"{LEAST_FREE_GB + ROOM_AGAIN_GB:g} GB" in rows["disk_full"]
    assert f"({usual.rejected_rate:.0%})".replace("%", " %") in rows["rejections"]
    assert f"({usual.error_rate:.0%})".replace("%", " %") in rows["errors"]
    assert f"({usual.server_error_rate:.0%})".replace("%", " %") in rows["server_errors"]
    assert (usual.latency_p99_s, "(off)" in rows["latency"]) == (None, True)
    assert f"({usual.loop_lag_s:g} s)" in rows["loop_lag"]
    assert f"for {(CALM_S + WINDOW_S) / 60:g} minutes" in rows["loop_lag"]
    assert f"by a timer every {TICK_S:g} s" in PAGE
    assert [outcome for outcome in Outcome if f": `{outcome}` |" not in PAGE] == []
    assert [code for code in REFUSED if f"`{code}`" not in PAGE] == []
    assert FAILED_RUNS == 1
    assert "two runs" in rows["runs_failing"]
    assert f"look every {JUDGE_EVERY_S:g} seconds" in PAGE
    assert f"from {FEWEST_SAMPLES} samples on" in PAGE
    assert f"the last {MOST_REMEMBERED} that are over" in PAGE
