"""The built-in tasks: what they let in, what reaches the provider, and which answers can be a job's result."""

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import pytest
from providers.stubs.openai import JSON, OpenAIStub, completion, embeddings
from providers.stubs.scripted import Reply
from server.stage import opened
from server.upstreams import one_model, openai_upstream

from headgate.core.errors import InvalidRequest
from headgate.core.job import Job, JobState
from headgate.runner.builtin import BUILT_IN, chat

CHAT: Final = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
EMBEDDINGS: Final = {"model": "m", "input": ["first", "second"]}
INPUTS: Final[dict[str, dict[str, Any]]] = {"chat": CHAT, "embeddings": EMBEDDINGS}
READERS: Final = {task.name: task for task in BUILT_IN}


def done(folder: Path, task: str, given: Any, *replies: Reply) -> tuple[Job, list[Any]]:
    """The job's end, and the bodies that its provider received."""

    async def scene() -> tuple[Job, list[Any]]:
        async with OpenAIStub(*replies) as stub:
            quick = {"jobs": {"retry": {"first_wait_s": 0.01}}}
            settings = {"data_dir": str(folder), **one_model(openai_upstream(stub)), **quick}
            async with opened(settings, work=True) as house:
                job = await (await house.gateway.jobs.submit(task, given)).wait(timeout=10)
            return job, [one.body for one in stub.requests]

    return asyncio.run(asyncio.wait_for(scene(), 30))


@pytest.mark.parametrize(
    ("ours", "left"),
    [
        ({"stream": False}, {}),
        ({"stream": None}, {}),
        ({"stream_options": {"include_usage": True}}, {}),
        ({"service_tier": "flex"}, {}),
        ({"service_tier": "priority"}, {"service_tier": "priority"}),
        ({"model": None, "params": {"a": 1}}, {"params": {"a": 1}}),
        ({"tools": [], "x": [0.1, {"y": None}]}, {"tools": [], "x": [0.1, {"y": None}]}),
    ],
)
def test_all_fields_reach_the_provider_but_those_that_headgate_acts_on(
    tmp_path: Path, ours: dict[str, Any], left: dict[str, Any]
) -> None:
    given = {**CHAT, **ours, "model": "m"}
    job, [received] = done(tmp_path, "chat", given, completion())

    assert job.state is JobState.COMPLETED
    assert received == {"model": "upstream-model", "messages": CHAT["messages"], **left}


@pytest.mark.parametrize("task", sorted(INPUTS))
@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"stream": 1}, "stream"),
        ({"regenerations": 9}, "regenerations"),
        ({"self": 1}, "self"),
        ({"model": "a\nb"}, "model"),
        ({"messages": None, "input": None}, None),
    ],
)
def test_a_body_that_can_be_no_call_is_rejected(task: str, more: dict[str, Any], param: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        READERS[task].read(json.dumps({**INPUTS[task], **more}).encode())
    assert caught.value.param == param or param is None


@pytest.mark.parametrize("value", [b"1e999", b'"\xff"', rb'"\ud800"'], ids=["number", "utf-8", "surrogate"])
@pytest.mark.parametrize("place", [b'"x": %b, "messages": [{"role": "user"}]', b'"messages": [{"role": %b}]'])
def test_a_body_that_cannot_be_read_later_is_rejected(place: bytes, value: bytes) -> None:
    """A line of a batch comes here as it was uploaded."""
    with pytest.raises(InvalidRequest, match="is not"):
        chat.read(b'{"model": "m", %b}' % (place % value))


@pytest.mark.parametrize("value", [b"1e999", b'"\xff"', rb'"\ud800"'], ids=["number", "utf-8", "surrogate"])
@pytest.mark.parametrize(("task", "good"), [("chat", completion()), ("embeddings", embeddings())])
def test_an_answer_that_cannot_be_stored_is_generated_anew(
    tmp_path: Path, task: str, good: Reply, value: bytes
) -> None:
    """Direct calls pass most of an answer on unread. A job's result is read whenever the job is shown."""
    bad = Reply(good.body[:-1] + b', "x": %b}' % value, headers=JSON)
    job, received = done(tmp_path, task, INPUTS[task], bad, good)

    assert (job.state, len(received)) == (JobState.COMPLETED, 2)
    assert job.result == json.loads(good.body)
