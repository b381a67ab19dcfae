"""The plan's page: every command on it prints what the page says, and every field and setting is named."""

import re
import shlex
from pathlib import Path

import msgspec
import pytest
from cli.command_stage import Desk

from headgate.planner.scenario import Load, Scenario, UpstreamShape
from headgate.planner.weather import WEATHERS, read_weather
from headgate.wiring.planning import KNOBS

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "plan.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```yaml\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
EXAMPLES = re.findall(r"```console\n\$ headgate (.*?)\n(.*?)```", PAGE, re.DOTALL)
FIELDS = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))


@pytest.mark.parametrize(("command", "printed"), EXAMPLES)
def test_each_example_prints_what_the_page_says(
    command: str,
    printed: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A number in the docs that nobody can get again is worse than none."""
    desk = Desk(tmp_path, capsys, monkeypatch)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    answer = desk.run(*shlex.split(command), columns=80)
    assert (answer.code, answer.out) == (0, printed)


def test_the_page_has_both_worked_examples() -> None:
    assert len(EXAMPLES) >= 7


def test_every_field_of_a_scenario_is_on_the_page_and_no_other() -> None:
    known = {field.name for kind in (Scenario, UpstreamShape, Load) for field in msgspec.structs.fields(kind)}
    assert known == FIELDS


def test_every_weather_is_on_the_page_with_the_fields_it_stands_for() -> None:
    rows = dict(re.findall(r"^\| `([\w-]+=[^`]+)` \|.*\| (.+) \|$", PAGE, re.MULTILINE))
    fields = {weather.example: read_weather(weather.example)[1] for weather in WEATHERS.values()}
    assert {example: set(re.findall(r"`(\w+)", row)) for example, row in rows.items()} == {
        example: set(names) for example, names in fields.items()
    }


def test_every_setting_that_can_be_changed_is_named() -> None:
    assert [name for name in KNOBS if f"`{name}`" not in PAGE] == []
