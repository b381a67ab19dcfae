"""What the durable queue does on this machine: every figure beside its floor, or a peer's, from the same run.

Run: python bench/queues.py [accepts] [lone] [bulk] [drain] [pickup] [claims]. All of it takes about five minutes.
HEADGATE_BENCH_ROWS sets how many rows `claims` puts into each table. fsync is on, payloads are chat bodies of about
700 bytes, the event loop is uvloop; SQLite is a file, PostgreSQL a server of our own with its default settings.
Prints "short" where a figure is below what was asked; exit code 1 when one is not even half of it.
"""

import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).parent.parent / "tests"))

import accepts
import claim_cost
import drain
import floors
import pgqueuer_drain
import pickup
import postgres
from figures import Figure, duration, in_turns, rate, run_sections, times
from ground import POSTGRES, SQLITE, apart, fresh

SECONDS: Final = 1.2
ROUNDS: Final = 3
DRAINED: Final = 20_000
SIZES: Final = (("64 at a time", 64, 128), ("500 at a time", 500, 1000))
"""A worker claims half its places at a time: (name, the peer's batch size, our `jobs.workers`)."""
Measure = Callable[..., Coroutine[Any, Any, float]]


class Bench:
    """The sections. Each measurement has a process and a database of its own."""

    def __init__(self, url: str) -> None:
        self._url = url

    def accepts(self) -> Iterator[Figure]:
        for kind, least in ((SQLITE, 12_000), (POSTGRES, 20_000)):
            measured = in_turns(
                ROUNDS,
                {
                    "floor": self._measure(floors.accepts_per_s, kind, together=50, seconds=SECONDS),
                    "port": self._measure(accepts.port_per_s, kind, seconds=SECONDS),
                    "front": self._measure(accepts.submits_per_s, kind, seconds=SECONDS),
                },
            )
            floor = measured["floor"]
            what = f"{kind}: accepts, one by one, {accepts.PRODUCERS} producers"
            yield rate(f"{what}, submit()", measured["front"], least=least, name="bare inserts", beside=floor)
            yield rate("  … at the store's port", measured["port"], name="bare inserts", beside=floor)

    def lone(self) -> Iterator[Figure]:
        for kind in (SQLITE, POSTGRES):
            measured = in_turns(
                ROUNDS,
                {
                    "floor": self._measure(floors.commit_ms, kind, count=150),
                    "ours": self._measure(accepts.lone_ms, kind, count=150),
                },
            )
            what = f"{kind}: a lone accept"
            yield times(what, measured["ours"], beside_ms=measured["floor"], most=2, name="bare commit")

    def bulk(self) -> Iterator[Figure]:
        for kind, least in ((SQLITE, 20_000), (POSTGRES, 40_000)):
            measured = in_turns(
                ROUNDS,
                {
                    "floor": self._measure(floors.accepts_per_s, kind, together=100, seconds=SECONDS),
                    "ours": self._measure(accepts.bulk_per_s, kind, together=100, seconds=SECONDS),
                },
            )
            what = f"{kind}: accepts, 100 at a time, submit_many()"
            yield rate(what, measured["ours"], least=least, name="bare inserts", beside=measured["floor"])

    def drain(self) -> Iterator[Figure]:
        for kind in (SQLITE, POSTGRES):
            what = f"{kind}: drain of {DRAINED:,} no-ops"
            name = "PgQueuer" if kind == POSTGRES else "bare claims"
            for size, batch, workers in SIZES:
                measured = in_turns(
                    ROUNDS,
                    {
                        "beside": self._drain_beside(kind, batch),
                        "ours": self._measure(drain.drain_per_s, kind, jobs=DRAINED, workers=workers),
                    },
                )
                yield rate(
                    f"{what}, {size}", measured["ours"], least=15_000, name=name, beside=measured["beside"]
                )
            ours = in_turns(ROUNDS, {"": self._measure(drain.drain_per_s, kind, jobs=DRAINED, workers=None)})
            yield rate(f"{what}, default settings", ours[""], least=15_000)

    def pickup(self) -> Iterator[Figure]:
        for kind in (SQLITE, POSTGRES):
            floor_ms = self._measure(floors.commit_ms, kind, count=150)()
            with fresh(kind, self._url) as ground:
                here = apart(pickup.waits_ms, ground, work=True)
            with fresh(kind, self._url) as ground, pickup.worker_beside(ground):
                beside = apart(pickup.waits_ms, ground, work=False)
            for where, waits in (("same process", here), ("another process", beside)):
                for share, most_ms in ((50, 3), (99, 10)):
                    yield duration(
                        f"{kind}: picked up by {where}, p{share}",
                        waits[len(waits) * share // 100],
                        most_ms=most_ms,
                        asked=f"≤ {most_ms} ms",
                        name="bare commit",
                        beside=f"{floor_ms:.2f} ms",
                    )

    def claims(self) -> Iterator[Figure]:
        rows = f"among 3 × {claim_cost.ROWS:,} rows"
        for kind in (SQLITE, POSTGRES):
            with fresh(kind, self._url) as few, fresh(kind, self._url) as many:
                few_ms, many_ms = apart(claim_cost.costs_ms, few, many)
            for name, with_few, with_many in zip(("claim of 64", "look"), few_ms, many_ms, strict=True):
                yield times(
                    f"{kind}: {name}, {rows}",
                    with_many,
                    beside_ms=with_few,
                    most=2,
                    name=f"{claim_cost.FEW:,} rows",
                )

    def _measure(self, measure: Measure, kind: str, **options: Any) -> Callable[[], float]:
        def run() -> float:
            with fresh(kind, self._url) as ground:
                return apart(measure, ground, **options)

        return run

    def _drain_beside(self, kind: str, batch: int) -> Callable[[], float]:
        if kind == POSTGRES:
            return self._measure(pgqueuer_drain.drain_per_s, kind, jobs=DRAINED, batch=batch)
        return self._measure(floors.drain_per_s, kind, jobs=DRAINED, together=batch)


def main(asked: list[str]) -> int:
    with postgres.server() as server:
        bench = Bench(server.url)
        sections: Mapping[str, Callable[[], Iterator[Figure]]] = {
            "accepts": bench.accepts,
            "lone": bench.lone,
            "bulk": bench.bulk,
            "drain": bench.drain,
            "pickup": bench.pickup,
            "claims": bench.claims,
        }
        return run_sections(sections, asked)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
