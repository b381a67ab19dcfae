"""What a scrape of /metrics costs with 20 models that all have answered, failed, been retried and refused.

Run: python bench/metrics.py. It takes a few seconds. Asked: 20 ms. The page is written in the event loop, so nobody is
served meanwhile.
"""

import asyncio
import statistics
import tempfile
import time
from typing import Any, Final

from figures import at_most, heading

from headgate import wiring
from headgate.core import events
from headgate.core.answer import Usage
from headgate.core.call import Lane
from headgate.core.failures import Failure, FailureKind
from headgate.gateway import Gateway
from headgate.observe.metrics import Metrics

MODELS: Final = 20
BEHAVIOURS: Final = ("instant", "slow")
MOST_MS: Final = 20.0
ROUNDS: Final = 50


def crowded(metrics: Metrics, gateway: Gateway) -> None:
    """Everything that can have happened to these models has."""
    for gate in gateway.status().upstreams:
        for lane in Lane:
            for error in (None, *FailureKind):
                failure = None if error is None else Failure(kind=error)
                told: dict[str, Any] = {"model": gate.model, "upstream": gate.upstream, "lane": lane}
                metrics(
                    events.Responded(
                        request_id="r",
                        agent_id=None,
                        attempts=2,
                        latency_ms=120.0,
                        queue_ms=20.0,
                        usage=Usage(10, 20),
                        error=None if error is None else error.value,
                        first_token_ms=60.0,
                        cost_usd=0.25,
                        **told,
                    )
                )
                metrics(
                    events.AttemptEnded(
                        request_ids=("r",),
                        model=gate.model,
                        upstream=gate.upstream,
                        attempt=2,
                        duration_ms=100.0,
                        failure=failure,
                    )
                )
            metrics(events.RequestRefused(request_ids=("r",), reason="queue_full", **told))


async def scrape() -> tuple[float, int]:
    """Milliseconds of the median scrape, and the page's bytes."""
    upstreams = [{"provider": "simulated", "model": name} for name in BEHAVIOURS]
    models = {f"model-{number}": {"upstreams": upstreams} for number in range(MODELS)}
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        gateway = wiring.build(wiring.read_settings({"data_dir": folder, "models": models}, env={}))
        metrics = Metrics(models=gateway.routes.names, status=gateway.status)
        crowded(metrics, gateway)
        took_ms = []
        for _ in range(ROUNDS):
            started = time.perf_counter()
            page = metrics.exposition()
            took_ms.append((time.perf_counter() - started) * 1000)
        await gateway.aclose()
    return statistics.median(took_ms), len(page)


def main() -> None:
    took_ms, size = asyncio.run(scrape())
    print(heading())
    print(at_most(f"/metrics with {MODELS} models ({size / 1000:,.0f} kB)", took_ms, "ms", most=MOST_MS))


if __name__ == "__main__":
    main()
