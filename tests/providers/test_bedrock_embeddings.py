"""Embeddings through InvokeModel: Titan's format, Cohere's, and models that have none."""

import asyncio
from typing import Any

import pytest
from providers.asking import an_embedding_call
from providers.bedrock_stage import MODEL, stage
from providers.stubs.bedrock import Reply, Seen, refusal, whole

from headgate.core.answer import Answer, Usage
from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure, FailureKind

TITAN = "amazon.titan-embed-text-v2:0"
COHERE = "cohere.embed-english-v3"


def titan(*vector: float) -> Reply:
    return whole({"embedding": vector, "inputTextTokenCount": 4})


def embed(model: str, texts: tuple[str, ...], *replies: Reply, **params: Any) -> tuple[Answer, list[Seen]]:
    async def scene() -> tuple[Answer, list[Seen]]:
        async with stage(*replies, model=model) as (stub, provider):
            return await provider.send(an_embedding_call(*texts, **params)), stub.seen

    return asyncio.run(scene())


def refused(model: str, *replies: Reply, **params: Any) -> Failure:
    with pytest.raises(ProviderFailure) as caught:
        embed(model, ("a", "b"), *replies, **params)
    return caught.value.failure


def test_titan_is_asked_text_by_text() -> None:
    answer, seen = embed(
        TITAN, ("a", "b"), titan(1, 2), titan(3, 4), dimensions=256, encoding_format="base64", user="me"
    )

    assert answer.vectors == [[1, 2], [3, 4]]
    assert answer.usage == Usage(8, 0)
    assert [request.body for request in seen] == [
        {"inputText": "a", "dimensions": 256},
        {"inputText": "b", "dimensions": 256},
    ]
    assert seen[0].target == "/model/amazon.titan-embed-text-v2%3A0/invoke"


def test_the_answer_is_the_clients_body_whose_vectors_are_as_they_came() -> None:
    reply = Reply(body=b'{"embedding": [0.10, -1e-05, 3], "inputTextTokenCount": 4}')

    answer, _ = embed(TITAN, ("a",), reply)

    assert answer.json() == {
        "object": "list",
        "model": "public",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.1, -1e-05, 3]}],
        "usage": {"prompt_tokens": 4, "total_tokens": 4},
    }
    assert b"[0.10, -1e-05, 3]" in answer.body
    assert not answer.blank


def test_an_empty_vector_is_a_flaw() -> None:
    answer, _ = embed(TITAN, ("a", "b"), titan(1), titan())

    assert answer.flaw == "vector 1 is empty"


def test_cohere_is_asked_for_up_to_96_texts_at_once() -> None:
    texts = tuple(f"text {number}" for number in range(97))
    tokens = {"X-Amzn-Bedrock-Input-Token-Count": "50"}
    many = whole({"embeddings": [[float(number)] for number in range(96)]}, headers=tokens)

    answer, seen = embed(COHERE, texts, many, whole({"embeddings": [[96.0]]}, headers=tokens), truncate="END")

    assert answer.vectors == [[float(number)] for number in range(97)]
    assert answer.usage == Usage(100, 0)
    assert seen[1].body == {"texts": ["text 96"], "input_type": "search_document", "truncate": "END"}


def test_cohere_by_format_through_a_profile() -> None:
    answer, seen = embed(
        "us.cohere.embed-v4:0",
        ("a",),
        whole({"embeddings": {"float": [[1.0]]}}),
        dimensions=512,
        input_type="search_query",
    )

    assert answer.vectors == [[1.0]]
    assert answer.usage == Usage(1, 0, estimated=True)
    assert seen[0].body == {"texts": ["a"], "input_type": "search_query", "output_dimension": 512}


@pytest.mark.parametrize("params", [{"dimensions": 512}, {"embedding_types": ["int8"]}])
def test_what_cohere_cannot_be_asked_for_is_refused_by_its_name(params: Any) -> None:
    failure = refused(COHERE, **params)

    assert failure.kind is FailureKind.REJECTED
    assert failure.message.startswith(next(iter(params)))


@pytest.mark.parametrize(
    ("model", "reply"),
    [
        (TITAN, whole({"vector": [1]})),
        (TITAN, whole({"embedding": ["x"]})),
        (TITAN, whole({"embedding": "AAAA"})),
        (COHERE, whole({"embeddings": [[1.0]]})),
        (COHERE, whole({"embeddings": {"int8": [[1], [2]]}})),
    ],
)
def test_a_broken_envelope_is_transient(model: str, reply: Reply) -> None:
    failure = refused(model, reply)

    assert (failure.kind, failure.code) == (FailureKind.TRANSIENT, "bad_envelope")


def test_an_error_has_its_class() -> None:
    assert refused(TITAN, refusal(429, "ThrottlingException", "slow down")).kind is FailureKind.THROTTLED


@pytest.mark.parametrize("model", [MODEL, "amazon.titan-embed-image-v1", "amazon.titan-text-express-v1"])
def test_a_model_without_embeddings_says_so(model: str) -> None:
    assert refused(model).code == "no_embeddings"
