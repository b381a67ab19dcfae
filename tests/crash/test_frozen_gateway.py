"""A gateway is frozen or killed while it works on an idempotency key: another takes over, and the key has one answer."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from crash.harness import Child, Family, Site
from crash.harness import until as until_true
from providers.stubs.openai import DONE
from server.http.front_stage import Answer, Wire
from server.numbered import NumberedStub
from server.upstreams import CHAT, asking, one_model, openai_upstream, until

LEASE_S = 2.0
GATEWAYS = 2
both_ways = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


@dataclass
class Scene:
    """Two gateways as processes on one store, and the provider that both call."""

    family: Family
    site: Site
    stub: NumberedStub
    streamed: bool
    gateways: list[Child] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)

    async def open(self) -> None:
        model = one_model(openai_upstream(self.stub), retry={"max_attempts": 1})
        settings = {**self.site.settings(lease_s=LEASE_S), **model}
        self.gateways = [self.family.start("gateway", settings=settings) for _ in range(GATEWAYS)]
        await asyncio.to_thread(
            until_true, "both serve", lambda: len(self._addresses()) == GATEWAYS, *self.gateways
        )
        self.ports = [self._addresses()[child.pid] for child in self.gateways]

    def _addresses(self) -> dict[int, int]:
        return {line["pid"]: urlsplit(line["url"]).port or 0 for line in self.site.lines("gateway")}

    async def ask(self, gateway: int) -> Answer:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[gateway])
        headers = "Idempotency-Key: k1", "X-Headgate-Timeout: 40"
        try:
            wire = Wire(reader, writer)
            return await asyncio.wait_for(wire.ask(asking(CHAT, *headers, stream=self.streamed)), 60)
        finally:
            writer.close()

    async def check(self, recorded: bytes) -> None:
        """All gateways that live return this answer, and none of them has logged a traceback."""
        for number, gateway in enumerate(self.gateways):
            if gateway.is_over():
                continue
            answer = await self.ask(number)
            assert (answer.status, answer.body) == (200, recorded)
            assert answer.headers["idempotent-replayed"] == "true"
            assert "Traceback" not in self.site.log_of(gateway)
        assert self.stub.calls == 2


def play(family: Family, site: Site, scene: Callable[[Scene], Awaitable[None]], *, streamed: bool) -> None:
    async def main() -> None:
        async with asyncio.timeout(120), NumberedStub() as stub:
            stage = Scene(family, site, stub, streamed)
            await stage.open()
            await scene(stage)
            family.end()

    asyncio.run(main())


@both_ways
@pytest.mark.parametrize("other_has_finished", [True, False], ids=["recorded", "in progress"])
def test_a_gateway_that_was_frozen_past_its_lease_returns_the_answer_that_was_recorded(
    family: Family, site: Site, streamed: bool, other_has_finished: bool
) -> None:
    """It wakes up with an answer of its own that does not count any more: also when no other is recorded yet."""

    async def scene(stage: Scene) -> None:
        first = asyncio.create_task(stage.ask(0))
        await until(lambda: stage.stub.calls == 1)
        family.freeze(stage.gateways[0])
        second = asyncio.create_task(stage.ask(1))
        await until(lambda: stage.stub.calls == 2)
        if other_has_finished:
            stage.stub.let(2)
            await second
        stage.gateways[0].send(signal.SIGCONT)
        stage.stub.let(1)
        if not other_has_finished:
            # Only a gateway that returns its own answer, or gives up, is done before the other has finished.
            await asyncio.wait({first}, timeout=1.0)
            assert not first.done()
            stage.stub.let(2)
        recorded, late = await second, await first
        assert (recorded.status, late.status) == (200, 200)
        assert b"answer 2" in recorded.body
        assert "idempotent-replayed" not in recorded.headers
        if streamed:
            assert DONE in recorded.body
            assert b"event: error" in late.body
            assert DONE not in late.body
        else:
            assert late.body == recorded.body
            assert late.headers["idempotent-replayed"] == "true"
        await stage.check(recorded.body)

    play(family, site, scene, streamed=streamed)


@both_ways
def test_the_key_of_a_killed_gateway_is_answered_by_the_other(
    family: Family, site: Site, streamed: bool
) -> None:
    """One call more, and one answer for all who ask from then on."""

    async def scene(stage: Scene) -> None:
        first = asyncio.create_task(stage.ask(0))
        await until(lambda: stage.stub.calls == 1)
        await asyncio.to_thread(stage.gateways[0].kill)
        with pytest.raises((EOFError, ConnectionError)):
            await first
        asked = [asyncio.create_task(stage.ask(1)) for _ in range(5)]
        await until(lambda: stage.stub.calls == 2)
        stage.stub.let_all()
        answers = await asyncio.gather(*asked)
        assert {answer.status for answer in answers} == {200}
        assert len({answer.body for answer in answers}) == 1
        await stage.check(answers[0].body)

    play(family, site, scene, streamed=streamed)
