"""`AsyncClient`: a gateway over HTTP, as its own library shows it: chats, jobs, dead letters, batches."""

import math
import os
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from headgate.client.asking import GRACE_S, Asking, given, header_key, in_path
from headgate.client.batches import Batches
from headgate.client.bookmarks import Bookmarks
from headgate.client.chat_stream import ChatStream
from headgate.client.dead_letters import DeadLetters
from headgate.client.feeder import Feeder, Item, Progress, Source
from headgate.client.line import Call, Line
from headgate.core.call import Lane, Message
from headgate.core.errors import DeadlineExceeded, InvalidRequest
from headgate.core.job import Job, JobState
from headgate.core.json_text import encode_json
from headgate.core.operator_pause import OperatorPause
from headgate.core.ports.clock import Chance, Clock
from headgate.core.retry import RetryPolicy
from headgate.machine.clock import SystemClock
from headgate.machine.ids import random_id
from headgate.transport import Proxies, Transport

HERE: Final = "http://127.0.0.1:8400"
LONGEST_WAIT_S: Final = 30.0
"""How long one look may wait for a job's end."""
_PATIENCE_S: Final = 10.0
"""What a look takes longer than it waits."""
_BREATH_S: Final = 1.0
"""From one look to the next, at least."""
JSON = dict[str, Any]


class Submitted(msgspec.Struct, frozen=True):
    """One of many jobs that were handed in together."""

    id: str
    task: str
    state: JobState


class AsyncClient(Asking):
    """`async with AsyncClient() as client: await client.chat("Hi", model="summary")`.

    The URL is `HEADGATE_URL`'s where none is given, the key `HEADGATE_API_KEY`'s. `timeout_s` is one deadline over all
    tries of a call. Retries have one owner, this client: three tries by default, each with the same idempotency key.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        retry: RetryPolicy | None = None,
        timeout_s: float = 300.0,
        ca_file: str | None = None,
        clock: Clock | None = None,
        chance: Chance = random.random,
        new_id: Callable[[], str] = random_id,
    ) -> None:
        self._transport = Transport(ca_file=ca_file, proxies=Proxies.from_environment(os.environ))
        line = Line(
            url or os.environ.get("HEADGATE_URL") or HERE,
            api_key=api_key or os.environ.get("HEADGATE_API_KEY") or None,
            retry=retry or RetryPolicy.web(),
            timeout_s=timeout_s,
            transport=self._transport,
            clock=clock or SystemClock(),
            chance=chance,
        )
        super().__init__(line, new_id)
        self.url = line.url
        self.dead_letters = DeadLetters(line, new_id)
        self.batches = Batches(line, new_id)
        self.bookmarks = Bookmarks(line, new_id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._transport.aclose()

    # ---- Calls -------------------------------------------------------------------------------------------

    async def chat(
        self,
        /,
        messages: str | Sequence[Message] | None = None,
        *,
        body: Mapping[str, Any] | None = None,
        lane: Lane | str | None = None,
        timeout_s: float | None = None,
        idempotency_key: str | None = None,
        **params: Any,
    ) -> JSON:
        """Ask a model. Messages, or one text, and what else belongs into the body (`model=`, `temperature=`, …); or a whole body."""
        asked = _chat_body(messages, body, params)
        call = self._posting("/v1/chat/completions", asked, key=idempotency_key, headers=_lane_header(lane))
        return (await self.line.ask(call, timeout_s=timeout_s)).read_object(_Completion)

    def stream(
        self,
        /,
        messages: str | Sequence[Message] | None = None,
        *,
        body: Mapping[str, Any] | None = None,
        lane: Lane | str | None = None,
        timeout_s: float | None = None,
        idempotency_key: str | None = None,
        **params: Any,
    ) -> ChatStream:
        """The same, as chunks while they come."""
        asked = {**_chat_body(messages, body, params), "stream": True}
        call = self._posting("/v1/chat/completions", asked, key=idempotency_key, headers=_lane_header(lane))
        return ChatStream(self.line, lambda: self.line.open(call, timeout_s=timeout_s))

    async def embed(
        self,
        /,
        input: str | Sequence[str],  # noqa: A002 - its name wherever embeddings are asked for
        *,
        lane: Lane | str | None = None,
        timeout_s: float | None = None,
        idempotency_key: str | None = None,
        **params: Any,
    ) -> JSON:
        call = self._posting(
            "/v1/embeddings", {**params, "input": input}, key=idempotency_key, headers=_lane_header(lane)
        )
        return (await self.line.ask(call, timeout_s=timeout_s)).read_object(_Objects)

    # ---- Jobs --------------------------------------------------------------------------------------------

    async def submit(
        self,
        /,
        task: str,
        input: Any = None,  # noqa: A002 - its name everywhere
        *,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> Job:
        """Hand in a job. When this returns it is on the gateway's disk. `options` are the fields of `POST /v1/jobs`."""
        body = {"task": task, "input": input, **given(**options)}
        return (await self._post("/v1/jobs", body, key=idempotency_key)).read(Job)

    async def submit_many(
        self, jobs: Iterable[Mapping[str, Any]], *, idempotency_key: str | None = None
    ) -> list[Submitted]:
        """Up to 1,000 at once, all or none of them: `{"task": …, "input": …, …}` each."""
        answer = await self._post("/v1/jobs", [dict(job) for job in jobs], key=idempotency_key)
        return answer.read(_SubmittedMany).data

    async def job(self, job_id: str) -> Job:
        return (await self._get(f"/v1/jobs/{in_path(job_id)}")).read(Job)

    async def wait(self, job_id: str, timeout: float | None = None) -> Job:  # noqa: ASYNC109 - as `JobHandle.wait`
        """The job once it has ended, however it did. `DeadlineExceeded` when that takes longer; the job goes on."""
        clock = self.line.clock
        ends_at = math.inf if timeout is None else clock.now() + timeout
        while True:
            began_at = clock.now()
            look_s = max(0.0, min(LONGEST_WAIT_S, ends_at - began_at))
            path = f"/v1/jobs/{in_path(job_id)}"
            patience_s = min(look_s + _PATIENCE_S, max(0.0, ends_at - began_at) + GRACE_S)
            answer = await self._get(path, {"wait": f"{look_s:g}"}, timeout_s=patience_s)
            job = answer.read(Job)
            if job.state.final:
                return job
            if clock.now() >= ends_at:
                raise DeadlineExceeded(f"job {job_id} has not ended within {timeout:g} s; it goes on")
            # A gateway that is going away lets nobody wait.
            await clock.sleep(max(0.0, min(_BREATH_S, ends_at - began_at) - (clock.now() - began_at)))

    async def cancel(self, job_id: str) -> Job:
        return (await self._post(f"/v1/jobs/{in_path(job_id)}/cancel")).read(Job)

    def jobs(
        self,
        *,
        state: str | None = None,
        task: str | None = None,
        model: str | None = None,
        page_size: int | None = None,
        after: str | None = None,
    ) -> AsyncGenerator[Job, None]:
        """All jobs that match, newest first, fetched page by page. `after` goes on behind a job."""
        query = {"state": state, "task": task, "model": model, "limit": page_size, "after": after}
        return self._pages("/v1/jobs", query, Job)

    async def feed(
        self,
        /,
        items: Source[Item],
        *,
        task: str,
        run: str,
        key: Callable[[Item], str] = str,
        input: Callable[[Item], Any] | None = None,  # noqa: A002 - its name everywhere
        in_flight: int = 100,
        every_s: float = 10.0,
        on_progress: Callable[[Progress], object] | None = None,
        on_end: Callable[[Item, Job], object] | None = None,
        on_rejected: Callable[[Item, Exception], object] | None = None,
        **options: Any,
    ) -> Progress:
        """Run a task over many items, never more than `in_flight` of them unfinished; see `docs/reference/client.md`."""
        feeder = Feeder(
            self.line,
            task=task,
            run=run,
            key=key,
            input=input,
            options=options,
            in_flight=in_flight,
            every_s=every_s,
        )
        return await feeder.feed(items, on_progress=on_progress, on_end=on_end, on_rejected=on_rejected)

    # ---- Applications ------------------------------------------------------------------------------------

    async def call(
        self,
        /,
        method: str,
        path: str,
        body: Any = None,
        *,
        type: Any = Any,  # noqa: A002 - as `ctx.step`
        keyed: bool = True,
        idempotency_key: str | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """A route of a mounted application: `await client.call("POST", "/v1/shout", {"text": "hello"})`.

        The JSON of its answer, as `type`. `keyed=False` sends no idempotency key, for a route that refuses one.
        """
        content = b"" if body is None else encode_json(body, what="the request")
        key = None if idempotency_key is None else header_key(idempotency_key)
        if key is None and keyed and method != "GET":
            key = self._new_id()
        call = Call(method=method, path=path, body=content, key=key)
        return (await self.line.ask(call, timeout_s=timeout_s)).read(type)

    # ---- The gateway itself ------------------------------------------------------------------------------

    async def models(self) -> list[str]:
        return [model.id for model in (await self._get("/v1/models")).read(_Models).data]

    async def pause_model(self, model: str) -> OperatorPause:
        """From now on nobody calls this model, `name/*` for a family. For keys that operate."""
        return (await self._post("/v1/models/pause", {"model": model})).read(OperatorPause)

    async def resume_model(self, model: str) -> None:
        (await self._post("/v1/models/resume", {"model": model})).read(_Named)

    async def status(self) -> JSON:
        """`GET /queue/status`: who waits, what is free, whether an interactive call would be admitted now."""
        return (await self._get("/queue/status")).read_object(_Status)

    async def alerts(self) -> list[JSON]:
        """What is wrong at the gateway, then what was, the latest first."""
        return (await self._get("/v1/alerts")).read(_Objects).data

    async def request(self, request_id: str) -> JSON:
        """What became of one of the last calls, by the `x-request-id` of its answer."""
        return (await self._get(f"/v1/requests/{in_path(request_id)}")).read(JSON)

    def requests(
        self,
        *,
        model: str | None = None,
        status: str | None = None,
        page_size: int | None = None,
        after: str | None = None,
    ) -> AsyncGenerator[JSON, None]:
        """The last calls that the gateway remembers, the latest end first."""
        query = {"model": model, "status": status, "limit": page_size, "after": after}
        return self._pages("/v1/requests", query, JSON)


class _SubmittedMany(msgspec.Struct):
    data: list[Submitted]


class _Completion(msgspec.Struct):
    choices: list[JSON]


class _Objects(msgspec.Struct):
    data: list[JSON]


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class _Named(msgspec.Struct):
    model: str


class _Status(msgspec.Struct):
    upstreams: list[JSON]


def _chat_body(
    messages: str | Sequence[Message] | None, body: Mapping[str, Any] | None, params: Mapping[str, Any]
) -> JSON:
    if (messages is None) == (body is None):
        raise InvalidRequest("a chat needs messages or a whole body, and not both", param="messages")
    if body is not None:
        return {**body, **params}
    asked = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    return {**params, "messages": asked}


def _lane_header(lane: Lane | str | None) -> tuple[tuple[bytes, bytes], ...]:
    return () if lane is None else ((b"x-headgate-lane", str(lane).encode("ascii", "replace")),)
