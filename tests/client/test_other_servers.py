"""What answers may be no gateway at all: a portal, a proxy, another API. It is told as such, and nothing is lost to it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from client.stub import Fault, Stub, listening

from headgate.client import AsyncClient, GatewayUnreachable, Outbox
from headgate.client.outbox import OPTIONS
from headgate.core.errors import DeadlineExceeded, HeadgateError, InvalidRequest, SettingsError, StateConflict
from headgate.core.retry import RetryPolicy
from headgate.runner.submission import Submission

OTHERS = [
    (404, b'{"detail": "Not Found"}'),
    (400, b"<html>no</html>"),
    (403, b'{"error": {"message": "who are you?"}}'),
    (200, b"<html>Please log in</html>"),
    (200, b'{"hello": 1}'),
    (200, b"[1, 2]"),
    (202, b'{"id": "job_x"}'),
]


async def each_of(found: Any) -> list[Any]:
    return [one async for one in found]


ASKED: dict[str, Callable[[AsyncClient], Awaitable[Any]]] = {
    "chat": lambda client: client.chat("Hi", model="m"),
    "embed": lambda client: client.embed("Hi", model="m"),
    "submit": lambda client: client.submit("t"),
    "jobs": lambda client: each_of(client.jobs()),
    "models": lambda client: client.models(),
    "resume": lambda client: client.resume_model("m"),
    "status": lambda client: client.status(),
    "create": lambda client: client.batches.create([{"custom_id": "a", "body": {}}]),
    "batch": lambda client: client.batches.get("b"),
    "output": lambda client: each_of(client.batches.output("b")),
}


@pytest.mark.parametrize("told", OTHERS, ids=str)
def test_every_call_says_that_no_gateway_answered(told: tuple[int, bytes]) -> None:
    """Not a KeyError, and not an answer that looks like one."""

    async def main() -> None:
        stub = Stub(instead=told)
        async with listening(stub), AsyncClient(stub.url) as client:
            for ask in ASKED.values():
                with pytest.raises(GatewayUnreachable, match="not as a headgate does") as caught:
                    await ask(client)
                assert not caught.value.waiting_helps

    asyncio.run(main())


def test_lines_of_a_list_or_a_file_that_are_none_are_told_too() -> None:
    async def main() -> None:
        stub = Stub(
            instead=(
                200,
                b'{"data": [{"hello": 1}], "id": "b", "status": "completed", "output_file_id": "f"}',
            )
        )
        async with listening(stub), AsyncClient(stub.url) as client:
            with pytest.raises(GatewayUnreachable):
                await each_of(client.jobs())
            output = client.batches.output("b")
            stub.instead = (200, b'{"id": "b", "status": "completed", "output_file_id": "f"}')
            assert await anext(output) == {"id": "b", "status": "completed", "output_file_id": "f"}
            await output.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("told", OTHERS, ids=str)
def test_no_entry_of_an_outbox_is_failed_or_sent_by_another_server(told: tuple[int, bytes]) -> None:
    """A hotel's log-in page must not turn an outbox into failures, nor into jobs that nobody has."""

    async def main() -> None:
        stub = Stub(instead=told)
        with Outbox("outbox.db") as outbox:
            outbox.add("t", "a")
            async with listening(stub), AsyncClient(stub.url) as client:
                for _ in range(4):
                    assert (await outbox.flush(client)).trouble is not None
                (entry,) = outbox.list()
                assert (entry.state, entry.standing.failures) == ("waiting", 0)
                stub.instead = None
                assert (await outbox.flush(client)).sent == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    "url", ["http://me:s3cret@h:1", "me:s3cret@h", "http://h/?token=s3cret", "http://h/#s3cret"]
)
def test_a_secret_in_the_url_is_refused_and_not_repeated(url: str) -> None:
    """Messages go to logs and screens."""
    with pytest.raises(SettingsError) as caught:
        AsyncClient(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("url", ["ftp://h", "127.0.0.1:8400", "http://", "gateway"])
def test_a_url_that_is_none_is_a_setting_that_is_wrong(url: str) -> None:
    with pytest.raises(SettingsError, match="cannot be asked"):
        AsyncClient(url)


def test_the_url_that_other_clients_want_is_understood() -> None:
    assert AsyncClient("http://h:1/v1/").url == AsyncClient("http://h:1/").url == "http://h:1"


def test_a_client_in_a_second_loop_is_told_at_once() -> None:
    """It would wait for ever on connections of a loop that does not run any more."""

    async def ask(client: AsyncClient) -> None:
        with pytest.raises(HeadgateError):
            await client.models()

    client = AsyncClient("http://127.0.0.1:9", retry=RetryPolicy(max_attempts=1))
    asyncio.run(ask(client))
    with pytest.raises(RuntimeError, match="open one in each"):
        asyncio.run(ask(client))
    with Outbox("outbox.db") as outbox:
        outbox.add("t")
        with pytest.raises(RuntimeError, match="open one in each"):
            asyncio.run(outbox.flush(client))


@pytest.mark.parametrize("value", [float("nan"), {"a": [float("-inf")]}, "\ud800", object()])
def test_what_json_cannot_say_is_refused_before_anything_is_sent(value: Any) -> None:
    """It came out as null, or as a UnicodeEncodeError."""

    async def main() -> None:
        stub = Stub()
        with Outbox("outbox.db") as outbox:
            async with listening(stub), AsyncClient(stub.url) as client:
                for ask in (
                    client.submit("t", value),
                    client.chat("Hi", model="m", temperature=value),
                    client.batches.create([{"custom_id": "a", "body": value}]),
                ):
                    with pytest.raises(InvalidRequest):
                        await ask
            with pytest.raises(InvalidRequest):
                outbox.add("t", value)
            assert (stub.seen, outbox.list()) == ([], [])

    asyncio.run(main())


def test_an_id_that_is_no_text_is_refused() -> None:
    async def main() -> None:
        async with AsyncClient("http://127.0.0.1:9") as client:
            for ask in (client.job("\ud800"), each_of(client.jobs(task="\ud800"))):
                with pytest.raises(InvalidRequest, match="no text"):
                    await ask

    asyncio.run(main())


def test_an_entry_that_can_never_be_taken_is_refused_when_it_is_added() -> None:
    """A week later nobody knows what was meant."""
    with Outbox("outbox.db") as outbox:
        with pytest.raises(InvalidRequest, match="task"):
            outbox.add("")
        with pytest.raises(InvalidRequest, match="priorty"):
            outbox.add("t", priorty=1)
        assert outbox.list() == []
    assert set(Submission.__struct_fields__) - {"task", "input"} == OPTIONS


def test_a_wait_on_a_gateway_that_hangs_ends_when_it_was_told_to() -> None:
    """It took ten seconds longer; for a batch, five minutes."""

    async def main() -> None:
        stub = Stub()
        async with listening(stub), AsyncClient(stub.url) as client:
            job = await client.submit("t")
            stub.jobs.append({"id": "batch_1"})
            stub.otherwise = lambda _: Fault.SILENT
            for wait in (client.wait(job.id, timeout=0.3), client.batches.wait("batch_1", timeout=0.3)):
                began = time.monotonic()
                with pytest.raises(DeadlineExceeded):
                    await wait
                assert 0.25 < time.monotonic() - began < 2.0

    asyncio.run(main())


def test_the_output_of_a_batch_that_runs_is_not_taken_for_an_empty_one() -> None:
    async def main() -> None:
        stub = Stub(instead=(200, b'{"id": "b", "status": "in_progress", "output_file_id": null}'))
        async with listening(stub), AsyncClient(stub.url) as client:
            with pytest.raises(StateConflict, match="in_progress"):
                await each_of(client.batches.output("b"))

    asyncio.run(main())
