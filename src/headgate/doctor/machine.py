"""The process's surroundings: open files, the clock, proxies."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from headgate.core.errors import SettingsError
from headgate.doctor.finding import Finding, fail, ok, warn
from headgate.transport import Proxies

UNLIMITED: Final = 2**62
AHEAD_S: Final = 60.0


def judge_files(limit: int, connections: int) -> Finding:
    """`limit` is as far as the process may raise it; an eighth is kept for calls out, the store and logs."""
    told = "no limit" if limit >= UNLIMITED else f"{limit:,} at most"
    room = limit - max(64, limit // 8)
    if room >= connections:
        return ok("open files", f"{told}, enough for {connections:,} connections")
    if room < 100:
        return fail("open files", told, f"raise it: ulimit -n {connections * 5 // 4}")
    return warn(
        "open files",
        f"{told}: {room:,} connections fit, not the {connections:,} of limits.connections",
        f"raise it (ulimit -n {connections * 5 // 4}, LimitNOFILE in systemd), or lower limits.connections",
    )


def judge_clock(now: datetime, newest: datetime | None) -> Finding:
    """`newest` is the last change of a file of ours: nothing was written in the future."""
    found = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    if newest is not None and (newest - now).total_seconds() > AHEAD_S:
        return warn(
            "clock",
            f"{found}, but files here were written at {newest:%Y-%m-%d %H:%M:%S} UTC",
            "set this machine's clock, and let NTP keep it",
        )
    return ok("clock", found)


def newest_change(files: Sequence[Path]) -> datetime | None:
    changes = [file.stat().st_mtime for file in files if file.exists()]
    return datetime.fromtimestamp(max(changes), UTC) if changes else None


def judge_proxies(environment: Mapping[str, str]) -> Finding:
    try:
        proxies = Proxies.from_environment(environment)
    except SettingsError as error:
        return fail("proxies", str(error), "correct or unset it: no upstream can be called")
    ways = [
        f"{scheme} through {proxy}"
        for scheme, proxy in (("http", proxies.http), ("https", proxies.https))
        if proxy
    ]
    if not ways:
        return ok("proxies", "none")
    exempt = f", but not {', '.join(proxies.exempt)}" if proxies.exempt else ""
    if proxies.http and not proxies.exempt:
        return warn(
            "proxies",
            ", ".join(ways),
            "local upstreams would be called through it, too: NO_PROXY=127.0.0.1,localhost",
        )
    return ok("proxies", ", ".join(ways) + exempt)
