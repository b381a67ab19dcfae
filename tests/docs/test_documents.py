"""Docs are tests: README's examples run, and the reference pages name what the code has."""

import asyncio
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import yaml

import headgate
from headgate.core import events
from headgate.core.errors import HeadgateError
from headgate.core.failures import FailureKind
from headgate.wiring import read_settings
from headgate.wiring.serving import serve

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
TOUR = (ROOT / "docs/tour.md").read_text()
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def _blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def test_the_first_example_of_the_readme_runs_against_headgate_serve(tmp_path: Path) -> None:
    """A new user's first two minutes: serve with nothing set, and the official client."""
    command = [sys.executable, "-m", "headgate", "serve", "--listen", "127.0.0.1:0"]
    bare = {name: value for name, value in os.environ.items() if name in {"PATH", "PYTHONPATH", "HOME"}}
    with subprocess.Popen(command, cwd=tmp_path, env=bare, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = re.search(r"http://[0-9.:]+", server.stdout.readline())
            assert url is not None
            example = _blocks(README, "python")[0].replace("http://127.0.0.1:8400", url[0])
            assert url[0] in example
            known: dict[str, Any] = {}
            exec(compile(example, "README.md", "exec"), known)
            known["client"].close()
        finally:
            server.terminate()
            assert server.wait(30) == 0


def test_the_second_example_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # One call in five fails there: three times in a row would be once in 125 runs.
    (tmp_path / "headgate.yaml").write_text(
        "models: {'simulated/*': {upstreams: [{provider: simulated}], retry: {max_attempts: 9, first_wait_s: 0.01}}}"
    )
    exec(compile(_blocks(README, "python")[1], "README.md", "exec"), {})
    assert "Say hello." in capsys.readouterr().out


def test_the_virtual_time_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/reference/library.md").read_text()
    exec(compile(_blocks(page, "python")[-1], "library.md", "exec"), {})
    assert capsys.readouterr().out == "5.0\n"


def test_the_library_page_names_every_argument() -> None:
    page = (ROOT / "docs/reference/library.md").read_text()
    gateway = headgate.Gateway
    for method in (gateway.complete, gateway.complete_many, gateway.embed, gateway.hold_slot):
        for name in inspect.signature(method).parameters:
            assert name == "self" or f"{name}" in page, name
    attributes = {name for kind in (headgate.Reply, headgate.Chunk) for name in dir(kind) if name[0] != "_"}
    assert [name for name in attributes - {"has_content"} if f"`{name}" not in page] == []


def _tour() -> tuple[dict[str, Any], dict[str, Any]]:
    """Its examples by their names, and its settings with simulated upstreams."""
    examples: dict[str, Any] = {"headgate": headgate}
    for block in _blocks(TOUR, "python"):
        exec(compile(block, "tour.md", "exec"), examples)
    settings = yaml.safe_load(_blocks(TOUR, "yaml")[0])
    for upstream in settings["models"]["summary"]["upstreams"]:
        upstream.update(provider="simulated", model="instant", interval_s=0.01)
        upstream.pop("api_key", None)
    labels = {"an article": "THINK", **{f"article {index}": "FYI" for index in range(3)}}
    settings["models"]["summary"]["upstreams"][0]["answers"] = labels
    return examples, settings


def test_the_examples_of_the_tour_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples, settings = _tour()
    settings["data_dir"] = str(tmp_path)

    async def run() -> None:
        async with headgate.open(settings, env={}, work=True, tasks=[examples["summarise"]]) as gateway:
            assert (await examples["judge"](gateway, "an article")).content == "THINK"
            replies = await examples["judge_all"](gateway, [f"article {index}" for index in range(3)])
            assert [reply.content for reply in replies] == ["FYI"] * 3
            await examples["show"](gateway, "an article")
            answer = await examples["ask"](gateway, [{"role": "user", "content": "an article"}])
            assert answer.content == "THINK"
            assert "List the facts of: an article" in await examples["enqueue"](gateway, "an article", "c1")

    asyncio.run(run())
    assert "THINK" in capsys.readouterr().out


def test_the_outbox_of_the_tour_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples, settings = _tour()
    examples["note_down"]("an article")

    async def run() -> None:
        async with serve(read_settings({**settings, "listen": "127.0.0.1:0"}, env={})) as served:
            monkeypatch.setenv("HEADGATE_URL", served.url)
            assert await asyncio.to_thread(examples["send_what_waits"]) == 1

    asyncio.run(run())


def test_the_yaml_of_the_tour_is_valid_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "headgate.yaml"
    path.write_text(_blocks(TOUR, "yaml")[0])
    settings = read_settings(path, env={"OPENAI_API_KEY": "sk-of-a-test"})
    assert settings.models["summary"].upstreams[0].gate.slots == 2


def test_the_make_targets_the_readme_names_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make ([a-z]+)", README):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_the_events_page_names_every_event_and_its_fields() -> None:
    page = (ROOT / "docs/reference/events.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| `([\w ]+)` \|$", page, flags=re.MULTILINE))
    expected = {
        event.__name__: [field.name for field in msgspec.structs.fields(event)]
        for event in get_args(events.Event)
    }
    assert {name: words.split() for name, words in rows.items()} == expected


def test_the_failures_page_names_every_kind_and_every_error_with_its_code() -> None:
    page = (ROOT / "docs/reference/failures.md").read_text()
    assert [kind for kind in FailureKind if f"`{kind}`" not in page] == []
    for name in headgate.__all__:
        error = getattr(headgate, name)
        if isinstance(error, type) and issubclass(error, HeadgateError) and error is not HeadgateError:
            row = next(
                (line for line in page.splitlines() if line.startswith("|") and f"`{name}`" in line), None
            )
            assert row is not None, name
            assert error.code == "internal" or f"`{error.code}`" in row, name


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_every_decision_is_listed() -> None:
    listed = (ROOT / "docs/decisions/README.md").read_text()
    records = [path.name for path in (ROOT / "docs/decisions").glob("0*.md")]
    assert [name for name in records if f"({name})" not in listed] == []
