"""The command line's page says what the commands have: every command, every option, and examples that parse."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from headgate.cli.app import app

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
SECTIONS = {
    heading.strip("`"): text
    for heading, text in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
}
SHARED = SECTIONS["Options that commands share"]
FLAG = re.compile(r"`(--?[a-z][a-z-]*)`")


def _commands(command: Any, path: str = "headgate") -> Iterator[tuple[str, Any]]:
    """Every command under this one that does something, with the words that lead to it."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, f"{path} {name}")
    if not hasattr(command, "commands"):
        yield path, command


ROOT: Any = typer.main.get_command(app)
COMMANDS = dict(_commands(ROOT))


def _flags(command: Any) -> set[str]:
    context = command.make_context("headgate", [], resilient_parsing=True)
    return {flag for param in command.get_params(context) for flag in param.opts if flag.startswith("-")}


def test_every_command_has_its_section_and_no_other_is_there() -> None:
    assert {name for name in SECTIONS if name.startswith("headgate ")} == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_on_the_page(name: str) -> None:
    named = {*FLAG.findall(SECTIONS[name]), *FLAG.findall(SHARED)}
    assert _flags(COMMANDS[name]) - named == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_table_exists(name: str) -> None:
    rows = "\n".join(line.split("|")[1] for line in SECTIONS[name].splitlines() if line.startswith("| `-"))
    assert set(FLAG.findall(rows)) - _flags(COMMANDS[name]) == set()


def test_the_shared_options_and_the_front_s_exist() -> None:
    known = {flag for command in COMMANDS.values() for flag in _flags(command)}
    assert set(FLAG.findall(SHARED)) - known == set()
    assert {flag for flag in _flags(ROOT) if f"headgate {flag}" not in PAGE} == set()


def _examples() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    found = [re.search(r"headgate [^|>]+", line) for block in blocks for line in block.splitlines()]
    return [example[0] for example in found if example]


@pytest.mark.parametrize("line", _examples())
def test_every_example_parses(line: str) -> None:
    name = max((name for name in COMMANDS if line.startswith(name)), key=len)
    words = shlex.split(line.removeprefix(name))
    assert COMMANDS[name].make_context(name, words).args == []


def test_every_command_has_an_example() -> None:
    assert [name for name, text in SECTIONS.items() if name in COMMANDS and "```sh\n" not in text] == []
