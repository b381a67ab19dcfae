"""Minutes of gate machines and storms from fresh seeds. Prints each seed, so that a failure can be replayed.

Run: python bench/soak.py [seconds]. Exit code 1 at the first failure.
"""

import asyncio
import gc
import os
import resource
import subprocess
import sys
import time

from inner_storm import SETTINGS, Books, Plan, blow, judge

from headgate import wiring
from headgate.planner import virtual
from headgate.planner.virtual import World

CALLS = 4_000


def storm(seed: int) -> str | None:
    """One storm in virtual time; says what went wrong."""

    async def main(world: World) -> str | None:
        settings = wiring.read_settings(SETTINGS, env={})
        gateway = wiring.build(settings, clock=world.clock, chance=world.chance)
        books = Books(CALLS)
        gateway.listen(books.hear)
        await blow(gateway, Plan(calls=CALLS, seed=seed), books)
        await asyncio.sleep(0)
        verdict = judge(books)
        if not verdict.holds:
            return str(verdict)
        gates = [gate for gate in gateway.status().upstreams if gate.model == "storm"]
        leaked = [
            gate
            for gate in gates
            if gate.available_slots != gate.total_slots or gate.rt_queue + gate.be_queue
        ]
        return f"not all slots came back: {leaked}" if leaked else None

    return virtual.run(main, seed=seed)


def machines(seed: int) -> bool:
    """The gate's state machine with another seed and ten times the examples of a test run."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "tests/calls/test_gate_machine.py",
            f"--hypothesis-seed={seed}",
        ],
        env={**os.environ, "HEADGATE_GATE_MACHINES": "2000"},
        check=False,
        timeout=1800,
    )
    return done.returncode == 0


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
    seed = time.time_ns() % 1_000_000
    ends_at = time.monotonic() + seconds
    storms, first_kib, peak_kib = 0, 0, 0
    print(f"gate machines, seed {seed} …", flush=True)
    if not machines(seed):
        return 1
    print(f"storms from seed {seed + 1} …", flush=True)
    while time.monotonic() < ends_at:
        seed += 1
        if (wrong := storm(seed)) is not None:
            print(f"storm seed {seed}: {wrong}")
            return 1
        storms += 1
        gc.collect()
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        first_kib = first_kib or peak_kib
    grown = (peak_kib - first_kib) / 1024 if storms else 0.0
    print(
        f"{storms} storms of {CALLS:,} calls: nothing lost, nothing doubled, no slot leaked; memory grew {grown:.1f} MiB"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
