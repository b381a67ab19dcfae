"""The task `bookmark`: fetch, extract, describe. What was fetched or paid for once is not fetched or paid for again."""

from functools import partial
from typing import Any, Final

import msgspec

import headgate
from headgate.apps.bookmarks import describing
from headgate.apps.bookmarks.bookmark import COLLECTION, Described, Given, Kept, body_of, kept_in, search_text
from headgate.apps.bookmarks.describing import Description
from headgate.apps.bookmarks.extraction import Page
from headgate.apps.bookmarks.options import BookmarkOptions
from headgate.apps.bookmarks.reading import Fetch, read_page
from headgate.apps.bookmarks.spending import Spending
from headgate.apps.bookmarks.trouble import of_description, of_page, told
from headgate.apps.untrusted import Parser

TASK: Final = "bookmark"
RETRY: Final = headgate.RetryPolicy(
    max_attempts=3, first_wait_s=120, factor=2, longest_wait_s=3600, jitter=headgate.Jitter.NONE
)
TIMEOUT_S: Final = 300.0
EXPIRES_AFTER_S: Final = 40 * 86_400.0
"""Longer than a month: what a ceiling holds is there when it is lifted."""


def bookmark_task(
    options: BookmarkOptions, spending: Spending, fetch: Fetch, parser: Parser
) -> headgate.Task[Given, dict[str, Any]]:
    rules = headgate.FetchRules(
        allow_private=options.allow_private,
        ports=None if options.allow_private else frozenset({80, 443}),
        max_bytes=options.page_bytes,
        total_s=options.fetch_s,
    )

    # A ceiling that holds jobs may be another one after a restart.
    @headgate.task(TASK, model=options.model, retry=RETRY, timeout_s=TIMEOUT_S, due_on_start=True)
    async def bookmark(ctx: headgate.Context, given: Given) -> dict[str, Any]:
        await _own_record(ctx, given)
        own = msgspec.structs.replace(rules, tenant=ctx.job.tenant)
        async with told(ctx, partial(of_page, max_bytes=options.page_bytes)):
            page = await ctx.step("page", lambda: read_page(given.url, fetch, own, parser), type=Page)
        async with told(ctx, of_description):
            described = await ctx.step("description", lambda: _describe(ctx, given, page), type=Description)
        return await _keep(ctx, given, described)

    async def _describe(ctx: headgate.Context, given: Given, page: Page) -> Description:
        asked = describing.messages(url=given.url, title=given.title or page.title, excerpt=page.excerpt)
        shape: dict[str, Any] = (
            {"response_format": describing.response_format()} if options.structured else {}
        )
        async with spending.paying(ctx):
            reply = await ctx.llm.complete(messages=asked, check=describing.check, **shape)
        return describing.read(reply.content)

    return bookmark


async def _keep(ctx: headgate.Context, given: Given, description: Description) -> dict[str, Any]:
    """Written together with the job's end."""
    record = await _own_record(ctx, given)
    described = Described(
        job_id=ctx.job.id,
        contract=describing.VERSION,
        description=description,
        attempts=ctx.job.attempt,
    )
    kept = Kept(given=kept_in(record).given, described=described)
    ctx.save(COLLECTION, record.id, body_of(kept), unique_key=given.url, text=search_text(kept))
    return {"bookmark_id": record.id}


async def _own_record(ctx: headgate.Context, given: Given) -> headgate.Record:
    record = await ctx.records.find(COLLECTION, given.url)
    if record is None or record.job_id != ctx.job.id:
        raise headgate.Skip("the bookmark was deleted")
    return record
