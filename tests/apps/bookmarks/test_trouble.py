"""What a bookmark's user reads when something goes wrong: what happened and what to do, in no operator's words."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from apps.bookmarks.stage import a_shop, a_site, answer, simulated, until
from server.http.front_stage import Play

WORDS: Final = "nope, says the provider"
SECRETS: Final = (
    WORDS,
    "127.0.0.1",
    "http",
    "openai",
    "api_key",
    "key",
    "check",
    "misconfigured",
    "transient",
    "pip",
)
"""What no user may read: where an upstream is, what its provider said, what only an operator can do."""


@asynccontextmanager
async def a_sick_upstream(status: int) -> AsyncIterator[dict[str, Any]]:
    """The models of the settings, with an upstream that answers every request with this status."""
    body = json.dumps({"error": {"message": WORDS}}).encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(body, status=status, kind="application/json"))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    upstream = {"provider": "openai", "model": "gpt", "base_url": url, "api_key": "k"}
    try:
        yield {"m": {"upstreams": [upstream]}}
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    ("status", "state", "words"),
    [
        (400, "failed", "The model refused this page. Retry it when that has changed."),
        (500, "retrying", "The model did not answer. It is tried again by itself."),
        (429, "processing", "The model is busy; this goes on by itself."),
        (
            401,
            "processing",
            "The model cannot be used at the moment; this goes on by itself once that is repaired.",
        ),
    ],
)
def test_a_sick_upstream_is_told_in_the_user_s_words(
    play: Play, caplog: pytest.LogCaptureFixture, status: int, state: str, words: str
) -> None:
    caplog.set_level(logging.INFO, logger="headgate")

    async def scene() -> None:
        async with a_sick_upstream(status) as models, a_site() as site, a_shop(models=models) as shop:
            saved = (await shop.save(site.url())).json()

            async def in_trouble() -> dict[str, Any] | None:
                found = await shop.get(saved["id"])
                return found if found["error_message"] else None

            told = await until(in_trouble)
            assert (told["status"], told["error_message"]) == (state, words)
            assert [secret for secret in SECRETS if secret in told["error_message"]] == []
            job = await shop.gateway.jobs.get(told["job_id"])
            assert WORDS in str(job.error), "it was about this job's own call"
            address = models["m"]["upstreams"][0]["base_url"].removesuffix("/v1")
            assert address.removeprefix("http://") not in str(job), "the job is its tenant's to read"
            assert f"job {job.id} failed: {status} from {address}" in caplog.text, (
                "the operator finds it in the log"
            )
        caplog.clear()

    play(scene)


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (
            answer(b"", status=404),
            "The page could not be read: the site answered 404. Retry it when that has changed.",
        ),
        (
            answer(b"", status=503),
            "The page could not be read: the site answered 503. It is tried again by itself.",
        ),
        (
            answer(b"%PDF", kind="application/pdf"),
            "The page could not be read: the address leads to application/pdf, not to a page that can be read. Retry it when that has changed.",
        ),
        (b"", "The page could not be read: the site could not be reached. It is tried again by itself."),
    ],
    ids=["gone", "sick", "no page", "no answer"],
)
def test_a_page_that_cannot_be_read_is_told_with_the_reason(play: Play, page: bytes, words: str) -> None:
    async def scene() -> None:
        async with a_site(page=page) as site, a_shop() as shop:
            saved = (await shop.save(site.url("/page"))).json()

            async def in_trouble() -> dict[str, Any] | None:
                found = await shop.get(saved["id"])
                return found if found["error_message"] else None

            assert (await until(in_trouble))["error_message"] == words

    play(scene)


def test_an_address_inside_is_refused_without_telling_where_its_name_leads(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer to "which address has this name?" is for those who run the network."""

    caplog.set_level(logging.INFO, logger="headgate")

    async def scene() -> None:
        async with a_shop(apps={"bookmarks": {"model": "m"}}) as shop:
            failed = await shop.saved("http://localhost/")
            assert failed["error_message"] == (
                "The page could not be read: the address leads to a private network."
                " Retry it when that has changed."
            )
            job = await shop.gateway.jobs.get(failed["job_id"])
            assert "leads to an address that is not allowed" in str(job.error)
            assert not re.search(r"127\.0\.0\.1|::1", str(job)), "the job is its tenant's to read"
            line = rf"job {job.id} failed: http://localhost leads to (127\.0\.0\.1|::1): this machine"
            assert re.search(line, caplog.text), "the operator finds the address in the log"

    play(scene)


def test_what_an_older_version_left_behind_is_told_without_its_error(play: Play) -> None:
    """Its job carries no words for the user; its class says enough."""

    async def scene() -> None:
        async with a_shop(work=False, models=simulated()) as shop:
            saved = (await shop.save("https://a.example/")).json()
            store = shop.gateway.durable.store
            await store.cancel(saved["job_id"], now=0.0, why="cancelled")
            told = await shop.get(saved["id"])
            assert (told["status"], told["error_message"]) == (
                "failed",
                "Processing was cancelled. Retry it.",
            )

    play(scene)
