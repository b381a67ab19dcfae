"""What the routes take and give, what a job is given, and what is kept of a summary."""

from typing import Annotated, Final, Literal

import msgspec

import headgate
from headgate.apps.articles.guard import SkipReason

ROUTE: Final = "/api/v1/summarize"
"""The first of the routes; the others are under it."""
LEAST_CHARS: Final = 100
"""Of content; there is nothing to shorten in less."""
MOST_CHARS: Final = 240_000
ARTICLES: Final = "articles"
"""The collection of summaries, by article id."""
LATEST_JOBS: Final = "article-jobs"
"""The collection that says which job is an article's latest."""

ArticleId = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern="^[ -~]+$")]
Priority = Literal["low", "high"]


class Summarize(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /api/v1/summarize`."""

    article_id: ArticleId
    content: Annotated[str, msgspec.Meta(min_length=LEAST_CHARS, max_length=MOST_CHARS)]
    stream: bool = False
    priority: Priority = "low"


class SummarizeLater(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /api/v1/summarize/queue`. Content that is too short is skipped, not refused."""

    article_id: ArticleId
    content: Annotated[str, msgspec.Meta(max_length=MOST_CHARS)]
    priority: Priority = "low"


class Summarized(msgspec.Struct, frozen=True, kw_only=True):
    """A summary, told to whoever waited for it."""

    success: bool = True
    article_id: str
    summary: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    total_duration_ms: int


class Queued(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of an article that was to be queued."""

    job_id: str | None
    """None where it has no job."""
    status: str
    reason: SkipReason | None = None
    """Why it was skipped."""


class SummaryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a queued summary stands."""

    job_id: str
    article_id: str
    status: headgate.JobState
    retry_count: int
    """Attempts that failed: 0 after a first success."""
    max_retries: int
    error_message: str | None
    summary: str | None


class Article(msgspec.Struct, frozen=True, kw_only=True):
    """The input of the task `summarize`."""

    article_id: ArticleId
    content: str


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A text that the model wrote; also a job's result, and the record of an article."""

    summary: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    prompt: str
    """The name and version of what was asked."""


def draft_of(reply: headgate.Reply, prompt: str) -> Draft:
    return Draft(
        summary=(reply.content or "").strip(),
        model=reply.model,
        prompt_tokens=reply.usage.input_tokens,
        completion_tokens=reply.usage.output_tokens,
        prompt=prompt,
    )


def lane_of(priority: Priority) -> headgate.Lane:
    return headgate.Lane.INTERACTIVE if priority == "high" else headgate.Lane.BATCH
