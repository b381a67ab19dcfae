"""`headgate doctor`: what works and what does not, with what to do about it."""

import asyncio
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import typer
from rich.text import Text

from headgate.cli.options import ConfigOption, JsonOption
from headgate.cli.screen import show, show_json, stdout
from headgate.cli.words import count_of, one_line
from headgate.doctor.finding import Finding, State
from headgate.settings import DEFAULT_FILE
from headgate.wiring import read_settings

FAILED: Final = 1
_STYLES: Final = {State.OK: "green", State.WARN: "yellow", State.FAIL: "bold red"}
_LONGEST_CHECK: Final = 32
_LEAST_WORDS: Final = 30


def command(as_json: JsonOption = False, config: ConfigOption = None) -> None:
    """Check this installation and every upstream, and say what to do.

    It checks the settings, the data folder, the database, the port and this machine. Upstreams are asked for
    free, all at once, 5 seconds each at most. Exit code 1 when something fails.
    """
    from headgate.doctor.examination import examine  # noqa: PLC0415 - no other command need wait for its parts

    settings = read_settings(config)
    findings = asyncio.run(examine(settings, _source(config), os.environ))
    if as_json:
        show_json({"object": "list", "data": findings})
    else:
        show(*_report(findings, stdout().width))
    if any(finding.state is State.FAIL for finding in findings):
        raise typer.Exit(FAILED)


def _source(config: Path | None) -> str:
    if config is not None:
        return str(config)
    return f"./{DEFAULT_FILE}" if Path(DEFAULT_FILE).exists() else "no file, so the defaults"


def _report(findings: Sequence[Finding], width: int) -> Iterator[Text]:
    column = min(_LONGEST_CHECK, max(len(one_line(finding.check)) for finding in findings))
    for finding in findings:
        yield from _lines(finding, column, max(_LEAST_WORDS, width))
    yield Text()
    yield _verdict(findings)


def _lines(finding: Finding, column: int, width: int) -> Iterator[Text]:
    """The check and what was found; under it what to do. Words wrap in their own column: none of them is cut."""
    check = Text(one_line(finding.check))
    head = Text.assemble((f"{finding.state:<4}", _STYLES[finding.state]), "  ", check)
    indent = 4 + 2 + column + 2
    if width - indent < _LEAST_WORDS or check.cell_len > column:
        # Too narrow for columns: what was found stands under its check.
        indent = 6
        yield head
        head = Text()
    found = Text(one_line(finding.found))
    advice = Text(f"→ {one_line(finding.advice)}", "yellow") if finding.advice else None
    for words in filter(None, (found, advice)):
        for line in words.wrap(stdout(), width - indent):
            line.rstrip()
            head.pad_right(indent - head.cell_len)
            yield head.append_text(line)
            head = Text()


def _verdict(findings: Sequence[Finding]) -> Text:
    counts = Counter(finding.state for finding in findings)
    words = [count_of(len(findings), "check")]
    if counts[State.FAIL]:
        words.append(f"{counts[State.FAIL]} failed")
    if counts[State.WARN]:
        words.append(count_of(counts[State.WARN], "warning"))
    if len(words) == 1:
        words.append("all is well")
    style = "red" if counts[State.FAIL] else "yellow" if counts[State.WARN] else "green"
    return Text(", ".join(words), style)
