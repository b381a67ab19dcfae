"""The stub speaks Bedrock's real format: AWS's own client understands it, and is checked by it like we are."""

import asyncio
from typing import Any

import botocore.config  # type: ignore[import-untyped]
import botocore.exceptions  # type: ignore[import-untyped]
import botocore.session  # type: ignore[import-untyped]
import pytest
from providers.stubs import bedrock as stubs

MESSAGES = [{"role": "user", "content": [{"text": "Hello"}]}]


def client(url: str, secret: str = stubs.SECRET) -> Any:
    session = botocore.session.Session()
    return session.create_client(
        "bedrock-runtime",
        region_name=stubs.REGION,
        endpoint_url=url,
        aws_access_key_id=stubs.KEY_ID,
        aws_secret_access_key=secret,
        aws_session_token=stubs.TOKEN,
        config=botocore.config.Config(retries={"total_max_attempts": 1}, proxies={}),
    )


def test_the_real_client_gets_an_answer_and_a_stream() -> None:
    def talk(url: str) -> tuple[Any, list[Any]]:
        boto = client(url)
        whole = boto.converse(modelId="amazon.nova-lite-v1:0", messages=MESSAGES)
        stream = boto.converse_stream(
            modelId="arn:aws:bedrock:us-east-1:123456789012:prompt/A", messages=MESSAGES
        )
        return whole, list(stream["stream"])

    async def scene() -> tuple[Any, list[Any], list[stubs.Seen]]:
        replies = stubs.said({"text": "Hi"}), stubs.events(*stubs.text_events("Hel", "lo"), piece_bytes=7)
        async with stubs.BedrockStub(*replies) as stub:
            whole, stream = await asyncio.to_thread(talk, stub.url)
            return whole, stream, stub.seen

    whole, stream, seen = asyncio.run(scene())
    assert whole["output"]["message"]["content"] == [{"text": "Hi"}]
    assert [next(iter(event)) for event in stream] == [
        "messageStart",
        "contentBlockDelta",
        "contentBlockDelta",
        "contentBlockStop",
        "messageStop",
        "metadata",
    ]
    assert (
        seen[1].target == "/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A123456789012%3Aprompt%2FA/converse-stream"
    )


def test_the_real_client_reads_the_stubs_errors() -> None:
    def talk(url: str) -> None:
        client(url).converse(modelId="m", messages=MESSAGES)

    async def scene() -> None:
        async with stubs.BedrockStub(stubs.refusal(429, "ThrottlingException", "slow down")) as stub:
            await asyncio.to_thread(talk, stub.url)

    with pytest.raises(botocore.exceptions.ClientError) as caught:
        asyncio.run(scene())
    assert caught.value.response["Error"] == {"Code": "ThrottlingException", "Message": "slow down"}


def test_the_real_client_reads_an_exception_inside_a_stream() -> None:
    def talk(url: str) -> None:
        list(client(url).converse_stream(modelId="m", messages=MESSAGES)["stream"])

    async def scene() -> None:
        frames = [*stubs.text_events("Hel")[:2], stubs.exception("throttlingException", "slow down")]
        async with stubs.BedrockStub(stubs.events(*frames)) as stub:
            await asyncio.to_thread(talk, stub.url)

    with pytest.raises(botocore.exceptions.EventStreamError) as caught:
        asyncio.run(scene())
    assert caught.value.response["Error"]["Code"] == "throttlingException"


def test_the_stub_refuses_a_wrong_secret() -> None:
    """A check that lets everything through would prove nothing about our own signatures."""

    def talk(url: str) -> None:
        client(url, secret="another").converse(modelId="m", messages=MESSAGES)

    async def scene() -> None:
        async with stubs.BedrockStub() as stub:
            await asyncio.to_thread(talk, stub.url)

    with pytest.raises(botocore.exceptions.ClientError, match="InvalidSignatureException"):
        asyncio.run(scene())
