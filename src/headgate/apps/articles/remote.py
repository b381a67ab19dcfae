"""The summariser for Python programs: its routes as functions of an `AsyncClient`, which owns the tries and their waits."""

from urllib.parse import quote

from headgate.apps.articles.shapes import ROUTE, Priority, Queued, Summarized, SummaryStatus
from headgate.client import AsyncClient


async def summarize(
    client: AsyncClient,
    article_id: str,
    content: str,
    *,
    priority: Priority = "low",
    timeout_s: float | None = None,
) -> Summarized:
    """Summarise an article and wait for it. A full queue is tried again after its Retry-After.

    `timeout_s` is one deadline over all tries; None: the client's. The answer of a try whose connection was cut is lost:
    the next try generates it again.
    """
    body = {"article_id": article_id, "content": content, "priority": priority}
    summarized: Summarized = await client.call(
        "POST", ROUTE, body, type=Summarized, keyed=False, timeout_s=timeout_s
    )
    return summarized


async def queue(
    client: AsyncClient,
    article_id: str,
    content: str,
    *,
    priority: Priority = "low",
    idempotency_key: str | None = None,
) -> Queued:
    """Queue an article, once. When this returns its job is on the gateway's disk, or `reason` says why it has none."""
    body = {"article_id": article_id, "content": content, "priority": priority}
    queued: Queued = await client.call(
        "POST", f"{ROUTE}/queue", body, type=Queued, idempotency_key=idempotency_key
    )
    return queued


async def status(client: AsyncClient, job_id: str) -> SummaryStatus:
    """The state of a queued summary. `client.wait(job_id)` waits for its end."""
    found: SummaryStatus = await client.call(
        "GET", f"{ROUTE}/status/{quote(job_id, safe='')}", type=SummaryStatus
    )
    return found
