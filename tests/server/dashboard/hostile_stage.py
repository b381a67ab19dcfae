"""A stranger who may write whatever the store takes: into every field of jobs, dead letters, batches and keys."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from html import escape
from typing import Any, Final

import msgspec
from contracts.job_stage import running
from server.dashboard.dashboard_stage import HOSTILE, Screen

from headgate.core.access import AccessTerms, Role
from headgate.core.job import Entry, JobState, Settlement
from headgate.core.ports.store import Store

CORPUS: Final = (
    *HOSTILE,
    "</textarea><script>window.pwned=1</script>",
    "</pre></bdi></details><iframe srcdoc='<script>parent.pwned=1</script>'>",
    "<form action=//elsewhere.example><button autofocus onfocus=window.pwned=1>",
    "<meta http-equiv=refresh content='0;url=//elsewhere.example'>",
    "<base href=//elsewhere.example><link rel=stylesheet href=//elsewhere.example/x>",
    "--><!--<style>*{background:url(//elsewhere.example)}</style>",
    "＜script＞ſcript\u2028window.pwned=1\u2029<ſvg onload=window.pwned=1>",
    "&lt;script&gt;window.pwned=1&lt;/script&gt;&#x3c;img src=x onerror=window.pwned=1&#x3e;",
    "\u202egpj.exe\u2066\u200f\u061c<b dir=rtl>\x00\x07\x1b[2J\x7f\ufeff",
    "<" + "x" * 60_000 + ">",
)


def known_as(words: str) -> str:
    """What of it a store takes as a name."""
    return words.replace("\x00", "")[:200]


async def bury(store: Store, number: int, words: str) -> str:
    """A dead letter that says this wherever it can say anything."""
    now, name, job_id = time.time(), known_as(words), f"job_{number:012x}hostile"
    said = msgspec.json.encode({words[:1000]: [words]})
    claim = await running(
        store,
        job_id,
        now=now,
        expires_at=now + 9999,
        run_at=now,
        task=name,
        model=name,
        tenant=name,
        dedup_key=name,
        webhook=name,
        metadata=said,
        input=said,
    )
    await store.save_progress(
        job_id, claim.lease, progress=msgspec.json.encode({"done": 1, "total": 2, "note": words})
    )
    entry = Entry(outcome="failed", at=now, attempt=1, message=name, upstream=name, by=name, kind="rejected")
    end = Settlement(
        id=job_id,
        lease=claim.lease,
        state=JobState.DEAD_LETTER,
        attempts=1,
        crashes=0,
        deferrals=0,
        run_at=now,
        due=now,
        finished_at=now,
        reason="permanent",
        error=words.replace("\x00", ""),
        error_class="rejected",
        result=said,
        entry=entry,
    )
    await store.settle([end], now=now)
    return job_id


async def begin_batch(screen: Screen, words: str) -> str:
    gateway = screen.house.gateway
    filename = "".join(filter(str.isprintable, words))[:100]
    file = await gateway.files.create(words.encode(errors="replace") + b"\n", filename=filename)
    metadata = {words[:64]: words[:512]}
    made = await gateway.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", metadata=metadata
    )
    return made.batch.id


def terms(words: str) -> AccessTerms:
    name = "".join(filter(str.isprintable, words))[:200]
    return AccessTerms(name=name, tenant=name, role=Role.CALL, models=(name.replace("*", ""),))


@asynccontextmanager
async def another_site(forms: Sequence[tuple[str, Mapping[str, Any]]]) -> AsyncIterator[str]:
    """A page of somebody else's with these forms on it, at a name that is not ours."""
    drawn = "".join(
        f'<form method="post" target="_self" action="{escape(to)}">'
        + "".join(
            f'<input name="{escape(name)}" value="{escape(str(value))}">' for name, value in fields.items()
        )
        + "</form>"
        for to, fields in forms
    ).encode()
    answer = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer % (len(drawn), drawn))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://localhost:{server.sockets[0].getsockname()[1]}/"
