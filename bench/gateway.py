"""What the gateway does on this machine: every figure beside nginx, a bare proxy or a direct call from the same run.

Run: python bench/gateway.py [throughput] [latency] [refusals] [overload] [streams] [room] [loris]. All of it takes
about three minutes. The gateway has a core of its own, the load and the upstream share another; one key, metrics and
the event log are on. By the clock all fall with busy neighbours, so processor time stands beside it. Linux only.
Other gateways join in where HEADGATE_BENCH_PEERS says (see peers.py). HEADGATE_BENCH_PROFILE names a file that gets a table of where the gateway's time went; ask for one section then.
Prints "short" where a figure is below what was asked; exit code 1 when one is not even half of it.
"""

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import nginx
from crowds import idle_bytes
from figures import Figure, at_most, beside, none_of, rate, run_sections
from gateway_stage import (
    CAPACITY_PER_S,
    CHUNKS,
    PACES_MS,
    SLOTS,
    STREAMS,
    Asked,
    Stage,
    chat,
    crowded,
    filled,
    staged,
    to_gateway,
)
from http_load import Load, closed_load
from open_load import Outcome, open_load
from processes import MEASURED_CORE, resident_bytes, script, started
from stream_load import Delays, stream_load

ROUNDS: Final = 3
SECONDS: Final = 2.0
IDLE: Final = 5_000
LORISES: Final = 1_000
LEAST_OF: Final = {"nginx": 0.22, "vLLM router": 1.0, "TensorZero": 1.0, "LiteLLM": 100.0}
"""What is asked of us, beside the others."""


class Bench:
    """The sections. Each has a gateway of its own."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def throughput(self) -> Iterator[Figure]:
        """Sixteen connections, an upstream that answers at once."""
        with self._stage.beside() as others, self._stage.gateway() as ours:
            asked = {**others, "ours": to_gateway(ours, chat("instant"))}
            loads = self._stage.in_turns(ROUNDS, asked, connections=16, seconds=SECONDS)
        per_s = {name: _middle(each, "per_s") for name, each in loads.items()}
        per_core_s = {name: 1e6 / _middle(each, "core_us") for name, each in loads.items()}
        for name in others:
            least = LEAST_OF.get(name)
            yield beside("requests/s, 16 connections", per_s["ours"], name, per_s[name], least=least)
            yield beside("  … per second of its core", per_core_s["ours"], name, per_core_s[name])

    def latency(self) -> Iterator[Figure]:
        """One connection: what a call takes longer than without us."""
        with self._stage.beside() as others, self._stage.gateway() as ours:
            direct = self._stage.directly(chat("stub"))
            asked = {**others, "direct": direct, "ours": to_gateway(ours, chat("instant"))}
            loads = self._stage.in_turns(ROUNDS, asked, connections=1, seconds=SECONDS)
        for field, most_ms in (("p50_ms", 0.5), ("p99_ms", 2.0)):
            direct_ms = _middle(loads["direct"], field)
            added_ms = {name: _middle(each, field) - direct_ms for name, each in loads.items()}
            peers = ", ".join(f"{name} {added_ms[name]:.2f}" for name in others)
            what = f"added latency, one connection, {field[:3]}"
            yield at_most(what, added_ms["ours"], "ms", most=most_ms, beside=peers)

    def refusals(self) -> Iterator[Figure]:
        """All slots busy, the queue full."""
        with self._stage.gateway() as ours, filled(ours):
            asked = {"ours": to_gateway(ours, chat("full"))}
            loads = self._stage.in_turns(ROUNDS, asked, connections=16, seconds=SECONDS)["ours"]
        yield rate("refusals/s, 16 connections", _middle(loads, "per_s"))
        yield rate("  … per second of its core", 1e6 / _middle(loads, "core_us"), least=8_000)
        others = sum(count for load in loads for status, count in load.statuses.items() if status != "429")
        yield none_of("  … answers that were no refusals", others)

    def overload(self) -> Iterator[Figure]:
        """Ten times what can be served."""
        for size, size_bytes in (("1 kB", 1_000), ("200 kB", 200_000)):
            body = chat("slow", size_bytes)
            with self._stage.bare_reader(body) as bare:
                floor = self._offered(bare)
            with self._stage.gateway() as gateway:
                asked = to_gateway(gateway, body)
                full = self._stage.run(closed_load, *asked, SLOTS + 8, SECONDS)
                told = self._offered(asked)
            what = f"{told.offered_per_s:,.0f}/s offered, bodies of {size}"
            bare_p99 = f"bare reader {floor.served_p99_ms:.1f}"
            yield beside(f"{what}: served", told.served_per_s, "at capacity", full.per_s, least=0.95)
            yield at_most("  … a refusal takes, p99", told.refused_p99_ms, "ms", most=50, beside=bare_p99)
            yield none_of("  … neither served nor refused", told.other)

    def _offered(self, asked: Asked) -> Outcome:
        return self._stage.run(open_load, asked.port, asked.request, 10 * CAPACITY_PER_S, 2 * SECONDS)

    def streams(self) -> Iterator[Figure]:
        """Many at once: how late the chunks are, what a stream costs, how many chunks a core carries."""
        direct, ours = self._streamed(PACES_MS[0])
        directly = f"direct {direct.p50_ms:.1f} / {direct.p99_ms:.1f}"
        yield at_most(f"{_streams_at(PACES_MS[0])}: late by, p50", ours.p50_ms, "ms", beside=directly)
        yield at_most("  … p99", ours.p99_ms, "ms", most=20, beside=directly)
        yield none_of("  … streams without their end", STREAMS - ours.whole)
        yield at_most("  … memory for each", ours.bytes_each / 1024, "KiB", most=64)
        yield rate("  … chunks per second of its core", 1e6 / ours.core_us, least=20_000)
        # More than a core may carry: then they come late and together, so no processor time is told.
        direct, ours = self._streamed(PACES_MS[1])
        yield beside(f"{_streams_at(PACES_MS[1])}: chunks/s", ours.per_s, "direct", direct.per_s)
        directly = f"direct {direct.p50_ms:.1f} / {direct.p99_ms:.1f}"
        yield at_most("  … late by, p50", ours.p50_ms, "ms", beside=directly)

    def _streamed(self, pace_ms: int) -> tuple[Delays, Delays]:
        lasts_s = CHUNKS * pace_ms / 1000
        asked = self._stage.directly(chat("stub", stream=True), f"paced-{CHUNKS}-{pace_ms}")
        direct = self._stage.run(stream_load, *asked, STREAMS, lasts_s)
        with self._stage.gateway() as gateway:
            # What is loaded and made at the first calls is not the streams' own.
            self._stage.run(closed_load, *to_gateway(gateway, chat("instant")), 16, 0.5)
            asked = to_gateway(gateway, chat(f"paced-{pace_ms}", stream=True))
            return direct, self._stage.run(stream_load, *asked, STREAMS, lasts_s)

    def room(self) -> Iterator[Figure]:
        """Start, memory at rest, idle connections."""
        with self._stage.gateway() as ours:
            yield at_most("from start to ready", ours.ready_s, "s", most=1.5)
            self._stage.run(closed_load, *to_gateway(ours, chat("instant")), 16, 0.5)
            yield at_most("memory at rest", resident_bytes(ours.pid) / 1e6, "MB", most=90)
            each = self._stage.run(idle_bytes, ours.port, ours.pid, IDLE)
            yield at_most(f"memory of each of {IDLE:,} idle connections", each / 1024, "KiB", most=20)

    def loris(self) -> Iterator[Figure]:
        """A thousand who never finish their headers, at the gateway or at a bare sink on the same core.

        To send so slowly costs the clients' core as much as the load itself: only the difference is ours.
        """
        before: list[Outcome] = []
        with_them: list[Outcome] = []
        with self._stage.gateway() as ours, started(script("sink.py"), MEASURED_CORE) as sink:
            asked = to_gateway(ours, chat("instant"))
            traffic = (open_load, asked.port, asked.request, 1_000, SECONDS)
            for _ in range(ROUNDS):
                for port, outcomes in ((sink.port, before), (asked.port, with_them)):
                    with crowded(port, LORISES):
                        outcomes.append(self._stage.run(*traffic))
        elsewhere_ms, here_ms = (
            statistics.median(each.served_p99_ms for each in outcomes) for outcomes in (before, with_them)
        )
        what = f"1,000 requests/s beside {LORISES:,} slow lorises, p99"
        yield at_most(
            what, here_ms, "ms", most=1.2 * elsewhere_ms, beside=f"lorises elsewhere {elsewhere_ms:.2f}"
        )
        yield none_of("  … not served", sum(each.other + each.refused_per_s > 0 for each in with_them))


def _streams_at(pace_ms: int) -> str:
    return f"{STREAMS} streams, a chunk each {pace_ms} ms"


def _middle(loads: list[Load], field: str) -> float:
    values: list[float] = [getattr(load, field) for load in loads]
    return statistics.median(values)


def main(asked: list[str]) -> int:
    with staged() as stage:
        bench = Bench(stage)
        sections: Mapping[str, Callable[[], Iterator[Figure]]] = {
            "throughput": bench.throughput,
            "latency": bench.latency,
            "refusals": bench.refusals,
            "overload": bench.overload,
            "streams": bench.streams,
            "room": bench.room,
            "loris": bench.loris,
        }
        notes = [
            "headgate serve --no-work, with one access key, metrics and the event log; nginx and others have none of it"
        ]
        if nginx.command() is None:
            notes.append(nginx.MISSING)
        return run_sections(sections, asked, *notes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
