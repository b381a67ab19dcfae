"""What must never be told: keys of upstreams, keys of clients, prompts and answers.

Everything logs at DEBUG, everything that can fail does, providers crash with secrets in their words; then every log
line, event, metric, file and error is searched.
"""

import io
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from contracts.provider_stage import KEY, Part
from server.http.front_stage import Answer, Play
from server.keyed_stage import keyed_door
from server.stage import House, opened
from server.upstreams import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    PROVIDERS,
    ask,
    can,
    look,
    stub_of,
    upstream_of,
)

from headgate.observe.metrics import Metrics

PROMPT: Final = "canary-prompt-7f3a"
QUICKLY: Final = {
    "retry": {"max_attempts": 2, "first_wait_s": 0.01},
    "timeouts": {"first_token_s": 0.05, "idle_s": 0.05, "total_s": 0.3},
}
ASKED: Final[dict[str, dict[str, Any]]] = {
    CHAT: {"messages": [{"role": "user", "content": PROMPT}], "user": PROMPT},
    COMPLETIONS: {"prompt": PROMPT},
    EMBEDDINGS: {"input": [PROMPT, PROMPT]},
}


class Watch:
    """All that was said where others could read it."""

    def __init__(self) -> None:
        self.log = io.StringIO()
        self.errors: list[bytes] = []
        self.events: list[object] = []
        self.metrics = b""

    def hits(self, *canaries: str) -> list[str]:
        told = {
            "log": self.log.getvalue(),
            "errors": "\n".join(map(repr, self.errors)),
            "events": "\n".join(map(repr, self.events)),
            "metrics": self.metrics.decode(),
            **{str(path): path.read_text() for path in Path.cwd().rglob("*.jsonl")},
        }
        assert "somebody DEBUG everything is heard" in told["log"]
        return [
            f"{canary} in {where}: …{text[max(0, text.find(canary) - 200) : text.find(canary) + 80]}…"
            for where, text in told.items()
            for canary in canaries
            if canary in text
        ]


@contextmanager
def everything_logged() -> Iterator[Watch]:
    """Every logger there is, at DEBUG, with tracebacks."""
    watch = Watch()
    handler = logging.StreamHandler(watch.log)
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.DEBUG)
    root.addHandler(handler)
    logging.getLogger("somebody").debug("everything is heard")
    try:
        yield watch
    finally:
        root.setLevel(before)
        root.removeHandler(handler)


@asynccontextmanager
async def house_watched(watch: Watch, **upstreams: dict[str, Any]) -> AsyncIterator[tuple[House, str]]:
    """A gateway with keys, metrics and logs on, one model for each upstream; and a client's key."""
    models = {name: {"upstreams": [one], **QUICKLY} for name, one in upstreams.items()}
    async with keyed_door() as door:
        text = await door.key(role="operate")
        async with opened({"models": models}, access=door.access) as house:
            metrics = Metrics(models=house.gateway.routes.names, status=house.gateway.status)
            house.gateway.listen(metrics)
            yield house, text
            watch.events += house.events
            watch.metrics += metrics.exposition()
            await metrics.aclose()


def _keep(watch: Watch, answer: Answer) -> None:
    if answer.status != 200 or b"event: error" in answer.body:
        watch.errors.append(b"%d %b %b" % (answer.status, json.dumps(answer.headers).encode(), answer.body))


@pytest.mark.parametrize("provider", PROVIDERS)
def test_no_part_of_an_upstream_makes_us_tell(
    play: Play, caplog: pytest.LogCaptureFixture, provider: str
) -> None:
    """The stubs quote the upstream's key in their errors, as real servers do."""

    async def scene() -> None:
        with everything_logged() as watch:
            async with AsyncExitStack() as stack:
                upstreams = {}
                for part in [part for part in Part if can(provider, part)]:
                    stub = await stack.enter_async_context(stub_of(provider, part))
                    upstreams[part.name.lower()] = upstream_of(provider, stub, part)
                house, text = await stack.enter_async_context(house_watched(watch, **upstreams))
                for model in upstreams:
                    await _provoke(watch, house, text, model)
            assert watch.errors
            assert watch.hits(KEY, text, text[:-6], PROMPT) == []
        caplog.clear()

    play(scene)


async def _provoke(watch: Watch, house: House, text: str, model: str) -> None:
    """Everything that can go wrong with one model, and with how it is asked."""
    key = f"Authorization: Bearer {text}"
    for path, streamed in ((CHAT, False), (CHAT, True), (COMPLETIONS, False), (EMBEDDINGS, False)):
        asked = {**ASKED[path], "model": model}
        for headers in ((key,), (key, f"Idempotency-Key: {model}")):
            _keep(watch, await ask(house, path, *headers, stream=streamed, **asked))
        _keep(watch, await ask(house, path, f"x-api-key: {text}x", stream=streamed, **asked))
        _keep(watch, await ask(house, path, key, f"x-api-key: {text}", stream=streamed, **asked))
        wrong = {name: {"wrong": PROMPT} if name != "user" else value for name, value in ASKED[path].items()}
        _keep(watch, await ask(house, path, key, stream=streamed, **wrong, model=model))
    for address in ("/v1/models", "/queue/status", "/health/ready", "/metrics"):
        _keep(watch, await look(house, address, key))


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("where", ["at once", "in mid-stream"])
def test_a_crash_tells_where_and_not_what(
    play: Play,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    provider: str,
    where: str,
) -> None:
    """An exception that nobody foresaw may repeat anything. Its kind and its place are told, its words are not."""

    async def scene() -> None:
        with everything_logged() as watch:
            async with (
                stub_of(provider, Part.STREAM) as stub,
                house_watched(watch, m=upstream_of(provider, stub, Part.STREAM)) as (house, text),
            ):
                broken: Any = house.gateway.routes.find("m").upstreams[0].provider
                words = f"cannot send {PROMPT} with {KEY} of {text}"
                _break(monkeypatch, broken, words, at_once=where == "at once")
                for streamed in (False, True):
                    for path in (CHAT, COMPLETIONS):
                        key = f"Authorization: Bearer {text}"
                        answer = await ask(house, path, key, stream=streamed, **ASKED[path])
                        assert (
                            answer.status == 502 or b"event: error" in answer.body or where == "in mid-stream"
                        )
                        _keep(watch, answer)
            assert watch.hits(KEY, PROMPT, text) == []
            assert "\nArithmeticError:\n" in watch.log.getvalue()
            assert "tests/server/test_secrets.py" in watch.log.getvalue()
        caplog.clear()

    play(scene)


def _break(monkeypatch: pytest.MonkeyPatch, provider: Any, words: str, *, at_once: bool) -> None:
    async def whole(*_: object) -> None:
        raise ArithmeticError(words) from KeyError(words)

    if at_once:
        monkeypatch.setattr(provider, "send", whole)
    monkeypatch.setattr(provider, "stream", _broken_stream(provider.stream, words, at_once=at_once))


def _broken_stream(original: Any, words: str, *, at_once: bool) -> Any:
    async def stream_break(request: object) -> AsyncIterator[Any]:
        if at_once:
            raise ArithmeticError(words)
        async with aclosing(original(request)) as pieces:
            yield await anext(pieces)
            yield await anext(pieces, None) or b""
        raise ArithmeticError(words)

    return stream_break


@pytest.mark.provokes_internal_error
def test_a_crash_of_our_own_tells_nothing_either(
    play: Play, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        with everything_logged() as watch:
            async with house_watched(watch, m={"provider": "simulated"}) as (house, text):

                def broken(*_: object, **__: object) -> None:
                    raise ArithmeticError(f"{PROMPT} {text}")

                key = f"Authorization: Bearer {text}"
                for name in ("answer", "stream"):
                    monkeypatch.setattr(house.gateway.requests, name, broken)
                monkeypatch.setattr(house.gateway, "status", broken)
                answers = [
                    await ask(house, CHAT, key, stream=streamed, **ASKED[CHAT]) for streamed in (False, True)
                ]
                answers.append(await look(house, "/queue/status", key))
                for answer in answers:
                    assert (answer.status, answer.code) == (500, "internal")
                    _keep(watch, answer)
                monkeypatch.undo()
            assert watch.hits(PROMPT, text) == []
            assert watch.log.getvalue().count("\nArithmeticError:\n") == len(answers)
        caplog.clear()

    play(scene)
