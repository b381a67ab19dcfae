"""The pages on applications say what the code does."""

import asyncio
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from server.http.front_stage import post
from server.stage import opened
from server.upstreams import sent

from headgate import wiring
from headgate.apps.articles.chunking import CHUNK_CHARS, LONG_CHARS, OVERLAP_CHARS
from headgate.apps.articles.guard import SkipReason
from headgate.apps.articles.shapes import LEAST_CHARS, MOST_CHARS, Summarized, SummaryStatus
from headgate.wiring.serving import serve

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
MOUNTING = (HOWTO / "mount-an-app.md").read_text()
ARTICLES = (HOWTO / "articles.md").read_text()


def _blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, flags=re.DOTALL)


def test_the_example_application_answers_over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {}
    exec(compile(_blocks(MOUNTING, "python")[0], "mount-an-app.md", "exec"), known)
    app = known["app"](SimpleNamespace(model="simulated"))

    async def main() -> None:
        async with opened({}, mount=app.routes) as house:
            answer = await sent(house, post(b'{"text": "hello"}', "/v1/shout"))
            assert (answer.status, json.loads(answer.body)["shouted"][:27]) == (
                200,
                "SIMULATED ANSWER TO: HELLO ",
            )

    asyncio.run(main())


def test_the_settings_of_the_articles_page_are_valid() -> None:
    settings = wiring.read_settings(yaml.safe_load(_blocks(ARTICLES, "yaml")[0]), env={})
    assert settings.apps["articles"].model == "summary"


def test_the_python_examples_of_the_articles_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = wiring.read_settings({"listen": "127.0.0.1:0", "apps": {"articles": {}}}, env={})

    def read_as_a_user(url: str) -> None:
        monkeypatch.setenv("HEADGATE_URL", url)
        known: dict[str, Any] = {}
        for example in _blocks(ARTICLES, "python"):
            exec(compile(example, "articles.md", "exec"), known)
        known["feed"]({"a4": known["article"]})

    async def main() -> None:
        async with serve(settings) as served:
            await asyncio.to_thread(read_as_a_user, served.url)
            assert await served.gateway.records.get("articles", "a4") is not None

    asyncio.run(main())
    assert capsys.readouterr().out.count("simulated answer to:") == 3


def test_the_articles_page_names_every_reason_field_and_size() -> None:
    for reason in SkipReason:
        assert f"| `{reason}` |" in ARTICLES
    fields = [*Summarized.__struct_fields__, *SummaryStatus.__struct_fields__]
    assert [name for name in fields if not re.search(rf"\b{name}\b", ARTICLES)] == []
    for size in (LEAST_CHARS, MOST_CHARS, LONG_CHARS, CHUNK_CHARS):
        assert f"{size:,}" in ARTICLES
    assert f"{OVERLAP_CHARS * 100 // CHUNK_CHARS} %" in ARTICLES
