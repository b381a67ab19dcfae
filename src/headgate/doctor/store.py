"""The database: does it open, how far is its clock from ours, who has keys."""

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from headgate.core.access import AccessKey, AccessState, is_loopback
from headgate.core.errors import HeadgateError
from headgate.core.ports.clock import Clock
from headgate.core.ports.store import Store
from headgate.doctor.finding import Finding, fail, ok, warn

CHECK: Final = "database"
OPEN_S: Final = 5.0
MUCH_SKEW_S: Final = 5.0
MOST_TENANTS: Final = 3
NEAR_QUOTA: Final = 0.9


class Opened:
    """What an open store told. Without one, nothing is known of its keys."""

    def __init__(
        self,
        finding: Finding,
        keys: Sequence[AccessKey] | None = None,
        stored_bytes: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.finding = finding
        self.keys = keys
        self.stored_bytes = stored_bytes


async def open_store(store: Store, clock: Clock, *, schema: int) -> Opened:
    """Opening brings an older schema up to date, as every command does."""
    try:
        async with asyncio.timeout(OPEN_S):
            await store.open()
    except (HeadgateError, TimeoutError, OSError) as error:
        words = str(error) or f"{store.name}: no answer within {OPEN_S:g} s"
        return Opened(
            fail(CHECK, words, "is it running, and are its address, password and rights as they should be?")
        )
    try:
        async with asyncio.timeout(OPEN_S):
            keys = [kept.key for kept in await store.access_keys()]
            stored_bytes = await store.stored_bytes()
    except (HeadgateError, TimeoutError) as error:
        return Opened(fail(CHECK, str(error) or f"{store.name}: no answer", "look at its log"))
    finally:
        await store.aclose()
    finding = judge_store(store.name, schema, store.clock_ahead_s)
    return Opened(finding, [key for key in keys if _lives(key, clock)], stored_bytes)


def judge_store(name: str, schema: int, ahead_s: float | None) -> Finding:
    found = f"{name}, schema {schema}"
    if ahead_s is None:
        return ok(CHECK, found)
    found += f", its clock {_apart(ahead_s)}"
    if abs(ahead_s) <= MUCH_SKEW_S:
        return ok(CHECK, found)
    return warn(CHECK, found, "let NTP keep both clocks: times in logs and in the database differ")


def judge_stored(stored_bytes: Mapping[str, int], tenant_bytes: int) -> Finding:
    """The tenants that store most, and whether one of them is about to be refused."""
    most = sorted(stored_bytes.items(), key=lambda entry: -entry[1])[:MOST_TENANTS]
    words = ", ".join(f"{tenant} {count / 1e6:,.1f} MB" for tenant, count in most if count > 0)
    found = words or "none"
    if any(count > NEAR_QUOTA * tenant_bytes for _, count in most):
        advice = "new work of a tenant at limits.tenant_bytes is refused: raise it, or delete files and lower retentions"
        return warn("stored bytes", found, advice)
    return ok("stored bytes", found)


def judge_keys(keys: Sequence[AccessKey] | None, host: str) -> Finding:
    if keys is None:
        return warn("keys", "not known: the database does not open", "see database")
    if keys:
        return ok("keys", f"{len(keys)} in force")
    if is_loopback(host):
        return ok("keys", "none: only this machine may connect")
    return fail(
        "keys",
        f"none, and others can reach {host}",
        "headgate keys create NAME --role operate, or listen on 127.0.0.1: without keys headgate serve does not start",
    )


def _apart(ahead_s: float) -> str:
    if abs(ahead_s) < 0.05:
        return "agrees with ours"
    return f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} ours"


def _lives(key: AccessKey, clock: Clock) -> bool:
    return key.state(clock.utc()) is AccessState.ACTIVE
