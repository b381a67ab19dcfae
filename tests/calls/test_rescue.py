"""Streams that go on at the next upstream: the client reads the whole text once, or hears that it was cut."""

import asyncio
import json
from typing import Any

import pytest
from calls.bodies import a_stream, answer, text_of
from stage import set_stage

from headgate.core import events
from headgate.core.errors import StreamCut
from headgate.planner import virtual
from headgate.planner.virtual import World


def run(main: Any) -> None:
    virtual.run(main)


ALIKE = {
    "answers": {"Summarise this.": "one two three four five six"},
    "latency_s": 0.1,
    "chunks": 6,
    "chunk_gap_s": 0.1,
}


def test_a_broken_stream_goes_on_at_the_next_upstream() -> None:
    """The client reads the whole text once; the books know two calls, one of them failed, and one answer."""

    async def main(world: World) -> None:
        first, second = {**ALIKE, "script": ["cut"]}, {**ALIKE, "chunks": 4}
        stage = set_stage(world, first, second, keep_events=True, stream_rescue=True)
        stream = a_stream(stage.gateway)
        text = await text_of(stream)
        whole = json.loads((await answer(stage.gateway)).body)
        assert text == whole["choices"][0]["message"]["content"]
        assert stream.attempts == 2
        assert stream.upstream == "simulated#2"
        assert [provider.calls for provider in stage.providers] == [2, 1]
        ends = [event.error for event in stage.events if isinstance(event, events.Responded)]
        assert ends == [None, None]
        assert stage.all_free

    run(main)


@pytest.mark.parametrize(
    ("upstreams", "switch"),
    [
        ([{**ALIKE, "script": ["cut"]}], True),
        (
            [{**ALIKE, "script": ["cut"]}, {**ALIKE, "answers": {"Summarise this.": "quite another story"}}],
            True,
        ),
        ([{**ALIKE, "script": ["cut"]}, {**ALIKE, "outcome": "transient"}], True),
        ([{**ALIKE, "script": ["cut"]}, ALIKE], False),
    ],
)
def test_where_there_is_nothing_to_join_the_stream_is_cut(
    upstreams: list[dict[str, Any]], switch: bool
) -> None:
    async def main(world: World) -> None:
        stage = set_stage(
            world, *upstreams, keep_events=True, stream_rescue=switch, retry={"max_attempts": 1}
        )
        with pytest.raises(StreamCut):
            await text_of(a_stream(stage.gateway))
        ends = [event for event in stage.events if isinstance(event, events.Responded)]
        assert len(ends) == 1
        assert ends[0].error is not None
        assert stage.all_free

    run(main)


def test_a_reader_that_leaves_during_the_rescue_leaves_nothing_behind() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {**ALIKE, "script": ["cut"]}, {**ALIKE, "latency_s": 60}, stream_rescue=True)
        reader = asyncio.create_task(text_of(a_stream(stage.gateway)))
        await world.clock.sleep(10)
        assert stage.free_slots < stage.gateway.status().total_slots
        reader.cancel()
        await asyncio.wait({reader})
        assert stage.all_free
        assert await text_of(a_stream(stage.gateway))

    run(main)
