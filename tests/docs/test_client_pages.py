"""The client's pages: their examples run against a gateway, and every method is named."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.client import AsyncClient, Client, Flushed, Outbox, Progress
from headgate.client.batches import Batches
from headgate.client.bookmarks import Bookmarks
from headgate.client.dead_letters import DeadLetters

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "reference" / "client.md").read_text()
OFFLINE = (DOCS / "howto" / "offline.md").read_text()
MANY = (DOCS / "howto" / "many-prompts.md").read_text()


def _examples(pages: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", pages, flags=re.DOTALL)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real `headgate serve` with nothing set."""
    command = [sys.executable, "-m", "headgate", "serve", "--listen", "127.0.0.1:0"]
    bare = {name: value for name, value in os.environ.items() if name in {"PATH", "PYTHONPATH", "HOME"}}
    folder = tmp_path_factory.mktemp("served")
    with subprocess.Popen(command, cwd=folder, env=bare, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://[0-9.:]+", server.stdout.readline())
            assert found is not None
            yield found[0]
        finally:
            server.terminate()
            assert server.wait(30) == 0


def test_the_examples_run(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADGATE_URL", url)
    known: dict[str, Any] = {}
    for example in _examples(REFERENCE + OFFLINE):
        exec(compile(example, "client.md", "exec"), known)
    known["summarise"]([])
    said = capsys.readouterr().out
    assert "Say hello." in said
    assert "2 sent, 0 wait" in said
    assert said.count("completed") == 4


def test_the_three_ways_to_run_many_prompts_give_the_same_answers(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADGATE_URL", url)
    known: dict[str, Any] = {}
    for example in _examples(MANY):
        exec(compile(example, "many-prompts.md", "exec"), known)
    prompts = ["first", "second", "third"]
    answers = asyncio.run(known["complete_all"](prompts))
    assert known["feed"](prompts) == dict(zip(prompts, answers, strict=True))
    assert known["answers_of"](dict(zip("abc", prompts, strict=True))) == dict(
        zip("abc", answers, strict=True)
    )


@pytest.mark.parametrize("kind", [AsyncClient, Client, Outbox, Batches, Bookmarks, DeadLetters])
def test_every_method_is_named(kind: type) -> None:
    names = {name for name in vars(kind) if not name.startswith("_")} - {"aclose", "close"}
    missing = {name for name in names if not re.search(rf"[`.]{name}\b", REFERENCE)}
    assert missing == set()


def test_every_number_is_named() -> None:
    fields = (*Progress.__struct_fields__, *Flushed.__struct_fields__)
    assert [field for field in fields if f"`{field}`" not in REFERENCE] == []
