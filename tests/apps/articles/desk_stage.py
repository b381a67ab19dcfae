"""The summariser's routes over a gateway with a worker, in virtual time and without HTTP."""

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from jobstage import JobStage, JobStages

import headgate
from headgate import AppReply, wiring
from headgate.apps import articles
from headgate.core.answer import Answer
from headgate.core.call import Call
from headgate.formats.chat import read_request
from headgate.providers.simulated import SimulatedProvider

CONTENT = "The council has met on Monday and has decided to mend the old bridge within the year. " * 3
LONG = "".join(f"Sentence {number} says something new about the bridge. " for number in range(500))
"""More than 20,000 characters."""


def temperatures_at_the_provider(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The temperature of every call that reaches the provider, filled as they come."""
    seen: list[Any] = []
    send = SimulatedProvider.send

    async def watching(self: SimulatedProvider, call: Call) -> Answer:
        seen.append(read_request(call).params.get("temperature"))
        return await send(self, call)

    monkeypatch.setattr(SimulatedProvider, "send", watching)
    return seen


@dataclass
class ArticleStage:
    """What a test can reach."""

    stage: JobStage
    routes: dict[str, headgate.AppRoute]

    async def call(self, route: str, body: Any = None, **more: Any) -> Any:
        """The answer's value; a stream as it is."""
        mounted = self.routes[route]
        call = headgate.AppCall(
            tenant=more.pop("tenant", "local"),
            by="test",
            route=route,
            path=more.pop("path", {}),
            query=None,
            body=None if body is None else msgspec.convert(body, mounted.body),
            key=more.pop("key", None),
            deadline_s=more.pop("deadline_s", None),
            check_model=lambda _: None,
            used=lambda _: None,
        )
        told = await mounted.handle(call)
        return msgspec.to_builtins(told.value) if isinstance(told, AppReply) else told

    async def now(self, article_id: str = "a1", content: str = CONTENT, **more: Any) -> Any:
        body = {"article_id": article_id, "content": content, **more}
        return await self.call("POST /api/v1/summarize", body)

    async def queue(
        self, article_id: str = "a1", content: str = CONTENT, *, tenant: str = "local", **more: Any
    ) -> Any:
        key = more.pop("key", None)
        body = {"article_id": article_id, "content": content, **more}
        return await self.call("POST /api/v1/summarize/queue", body, tenant=tenant, key=key)

    async def status(self, job_id: str, *, tenant: str = "local") -> Any:
        return await self.call(
            "GET /api/v1/summarize/status/{job_id}", path={"job_id": job_id}, tenant=tenant
        )

    async def ended(self, job_id: str) -> Any:
        """The status at the job's end."""
        await self.stage.gateway.jobs.wait(job_id)
        return await self.status(job_id)

    async def summary(self, article_id: str = "a1", *, tenant: str = "local") -> Any:
        kept = await self.stage.gateway.records.get("articles", article_id, tenant=tenant)
        return None if kept is None else kept.body


async def open_articles(
    stages: JobStages, *upstreams: dict[str, Any], options: dict[str, Any] | None = None, **settings: Any
) -> ArticleStage:
    """A gateway whose model `m` has these upstreams, and the summariser on it."""
    listed = {"model": "m", **(options or {})}
    stage = await stages.open(*upstreams, apps={"articles": listed}, **settings)
    mounted = wiring.build_routes({"articles": articles.Options(**listed)}, stage.gateway)
    return ArticleStage(stage, {f"{route.method} {route.path}": route for route in mounted})
