"""What a hostile page could make of its parser. Runs in parsing processes."""

import ctypes
import signal
import time


def parse(*, what: str) -> str:
    match what:
        case "memory":
            taken = []
            while True:
                taken.append(bytes(10_000_000))
        case "spin":
            while True:
                pass
        case "crash":
            ctypes.string_at(0)
        case "print":
            print("not a result", flush=True)  # noqa: T201 - libraries do
        case "sleep":
            time.sleep(600)
        case "alarm":
            return str(signal.getitimer(signal.ITIMER_REAL)[0])
        case "large":
            return "x" * 17_000_000
    return "fine"
