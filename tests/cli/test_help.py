"""`--help` as a stranger reads it: every summary whole, and nothing wider than the terminal."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from cli.command_stage import Desk

from headgate.cli.app import app

ROOT: Any = typer.main.get_command(app)


def _groups(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if hasattr(command, "commands"):
        yield words
        for name, inner in command.commands.items():
            yield from _groups(inner, (*words, name))


def _summaries(words: tuple[str, ...]) -> dict[str, str]:
    """The first sentence of each command of a group."""
    group = ROOT
    for word in words:
        group = group.commands[word]
    firsts = {
        name: " ".join(command.help.split("\n\n")[0].split()) for name, command in group.commands.items()
    }
    return {name: re.split(r"(?<=\.)\s", text)[0].removesuffix(".") for name, text in firsts.items()}


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("words", list(_groups(ROOT)), ids=lambda words: " ".join(words) or "headgate")
def test_every_command_is_listed_with_its_whole_summary(
    words: tuple[str, ...], columns: int, desk: Desk
) -> None:
    answer = desk.run(*words, "--help", columns=columns)

    assert answer.code == 0
    assert max(map(len, answer.out.splitlines())) <= columns
    said = " ".join(answer.out.split())
    summaries = _summaries(words)
    assert [name for name, summary in summaries.items() if f" {name} {summary}" not in said] == []
    assert "..." not in said.replace("COMMAND [ARGS]...", "")


def test_the_front_page_has_one_line_for_each_command_under_the_heading_of_its_group(desk: Desk) -> None:
    page = desk.run("--help", columns=80).out
    groups = page.partition("\n\nRun:\n")[2]

    lines = [line for line in groups.splitlines() if line.startswith("  ")]
    assert sorted(line.split()[0] for line in lines) == sorted(ROOT.commands)
    assert {line for line in groups.splitlines() if line and not line.startswith(" ")} == {
        "Work:",
        "Operate:",
        "Set up:",
        "Applications:",
    }
