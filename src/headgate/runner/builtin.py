"""The tasks that come with headgate: `chat` and `embeddings`, with OpenAI's bodies in and out."""

from typing import Any

from headgate.core.bodies import completion_body, embeddings_body
from headgate.core.embeddings import EmbeddingRequest, check_embedding, read_input
from headgate.core.errors import InvalidRequest
from headgate.core.messages import Request, check_request
from headgate.runner.context import Context
from headgate.runner.tasks import Task

_OURS = frozenset({"model", "messages", "input", "stream", "service_tier", "stream_options"})
"""What the gateway reads itself; everything else passes to the provider."""
_NOT_FROM_OUTSIDE = frozenset({"check", "regenerations", "self"})
"""What the code of a task says to its call. From a caller it is a mistake: no provider has a parameter of that name."""
_JOBS_OWN = "-"
"""Stands for the model of the job, which is known to be there."""


def _params(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in _OURS}


def _refuse_strange(body: dict[str, Any]) -> None:
    if body.get("stream"):
        raise InvalidRequest("a job cannot stream: leave out stream, or set it to false", param="stream")
    for name in sorted(_NOT_FROM_OUTSIDE & body.keys()):
        raise InvalidRequest(f"{name} is no parameter of a call: leave it out", param=name)


def _check_chat(body: dict[str, Any]) -> None:
    _refuse_strange(body)
    check_request(Request(id="-", model=body.get("model") or _JOBS_OWN, messages=body.get("messages", ())))


def _check_embeddings(body: dict[str, Any]) -> None:
    _refuse_strange(body)
    check_embedding(
        EmbeddingRequest(id="-", model=body.get("model") or _JOBS_OWN, input=read_input(body.get("input")))
    )


async def _chat(ctx: Context, body: dict[str, Any]) -> dict[str, Any]:
    # To the job's model, which is the submission's if it named one, else the body's.
    # As a mapping: nothing in a body may become an argument of ours.
    reply = await ctx.llm.complete(messages=body["messages"], params=_params(body))
    return completion_body(reply, created=ctx.now())


async def _embeddings(ctx: Context, body: dict[str, Any]) -> dict[str, Any]:
    reply = await ctx.llm.embed(input=read_input(body["input"]), params=_params(body))
    return embeddings_body(reply.vectors, reply.usage, model=reply.model)


chat = Task("chat", _chat, check=_check_chat, needs_model=True)
embeddings = Task("embeddings", _embeddings, check=_check_embeddings, needs_model=True)
BUILT_IN = (chat, embeddings)
