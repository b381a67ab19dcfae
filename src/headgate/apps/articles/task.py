"""The task `summarize`: one article, durably. Its parts are steps, so that a retry pays for none of them twice."""

from collections.abc import Callable

import msgspec

import headgate
from headgate.apps.articles.contracts import Contract
from headgate.apps.articles.guard import SkipReason
from headgate.apps.articles.options import Options
from headgate.apps.articles.repetition import parameters
from headgate.apps.articles.shapes import ARTICLES, LEAST_CHARS, MOST_CHARS, Article, Draft, draft_of
from headgate.apps.articles.writing import BLANK, summarise

NAME = "summarize"


def summarize_task(options: Options) -> headgate.Task[Article, Draft]:
    async def summarize(ctx: headgate.Context, article: Article) -> Draft:
        if len(article.content.strip()) < LEAST_CHARS:
            raise headgate.Skip(SkipReason.CONTENT_TOO_SHORT)
        if len(article.content) > MOST_CHARS:
            raise headgate.Reject(f"the content has more than {MOST_CHARS:,} characters")
        # Somebody may have asked for it at once while this waited.
        if await ctx.records.get(ARTICLES, article.article_id) is not None:
            raise headgate.Skip(SkipReason.SUMMARY_EXISTS)
        draft = await summarise(article.content, _StepWriter(ctx, options).write)
        ctx.save(ARTICLES, article.article_id, msgspec.to_builtins(draft))
        return draft

    retry = headgate.RetryPolicy(max_attempts=options.max_retries)
    decorate = headgate.task(NAME, model=options.model, retry=retry, timeout_s=options.timeout_s)
    return decorate(summarize)


class _StepWriter:
    """Writes on behalf of a job: each text is a step of it."""

    def __init__(self, ctx: headgate.Context, options: Options) -> None:
        self._ctx = ctx
        self._options = options

    async def write(self, step: str, contract: Contract, text: str) -> Draft:
        async def ask() -> Draft:
            return await self._ask(contract, text)

        return await self._ctx.step(step, ask, type=Draft)

    async def _ask(self, contract: Contract, text: str) -> Draft:
        flaws: list[str] = []
        first, *others = (
            parameters(self._options.temperature, regeneration)
            for regeneration in range(1 + self._options.max_repetition_retries)
        )
        try:
            reply = await self._ctx.llm.complete(
                messages=contract.messages(text),
                check=_checked(contract, flaws),
                regenerations=others,
                **first,
            )
        except headgate.OutputInvalid as error:
            # Nobody but the check sees what is there: without its word there was nothing.
            if not flaws or flaws[-1] == BLANK:
                raise headgate.Reject("the model has nothing to say about this text") from error
            raise
        return draft_of(reply, contract.name)


def _checked(contract: Contract, flaws: list[str]) -> Callable[[headgate.Answer], None]:
    def check(answer: headgate.Answer) -> None:
        text = (answer.content or "").strip()
        if flaw := contract.flaw(text) if text else BLANK:
            flaws.append(flaw)
            raise ValueError(flaw)

    return check
