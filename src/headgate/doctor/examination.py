"""All checks of one installation, side by side; none takes longer than its own few seconds."""

import asyncio
import os
import resource
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Final

import msgspec

import headgate
from headgate.core.ports.provider import Provider
from headgate.core.problems import InvalidSettings
from headgate.doctor.finding import Finding, fail, ok, warn
from headgate.doctor.folder import judge_folder, look_at_folder
from headgate.doctor.machine import UNLIMITED, judge_clock, judge_files, judge_proxies, newest_change
from headgate.doctor.ports import taken, who_listens
from headgate.doctor.running import KEY_VARIABLE, Status, judge_gates, not_read, not_shown
from headgate.doctor.store import judge_keys, judge_stored, open_store
from headgate.doctor.upstreams import Asked, ask_upstream, only_simulated, upstreams_of
from headgate.machine.clock import SystemClock
from headgate.machine.ids import random_id
from headgate.runner.node import pids_at_work
from headgate.settings import Settings
from headgate.transport import Endpoint, Limits, Transport, TransportError
from headgate.wiring.providers import PROVIDERS, Surroundings, Transports
from headgate.wiring.stores import build_store, database_file, schema_number

_GREETING: Final = Limits(connect_s=2.0, total_s=3.0)
_LONGEST_STATUS: Final = 10_000_000


class _Readiness(msgspec.Struct):
    status: str


async def examine(settings: Settings, source: str, environment: Mapping[str, str]) -> list[Finding]:
    """Everything there is to find, in the order of the report."""
    checks: list[Awaitable[list[Finding]]] = [
        _places(settings, source),
        _database(settings),
        _front(settings, environment),
        _machine(settings, environment),
        _upstreams(settings),
    ]
    return [finding for findings in await asyncio.gather(*checks) for finding in findings]


async def _places(settings: Settings, source: str) -> list[Finding]:
    folder = await asyncio.to_thread(look_at_folder, settings.data_dir)
    return [
        ok("settings", f"{source}: models {', '.join(settings.models)}"),
        judge_folder(
            folder,
            sqlite=database_file(settings) is not None,
            min_free_bytes=settings.limits.min_free_bytes,
        ),
        _neighbours(settings.data_dir),
    ]


def _neighbours(data_dir: Path) -> Finding:
    pids = [pid for pid in pids_at_work(data_dir / "nodes") if pid != os.getpid()]
    if not pids:
        return ok("processes", "no other process uses this data folder")
    found = f"pid {', '.join(map(str, pids))} at work on this data folder"
    if len(pids) == 1:
        return ok("processes", found)
    return warn("processes", found, "each has its own gates: upstreams get the calls of all together")


async def _database(settings: Settings) -> list[Finding]:
    host = settings.address.host
    file = database_file(settings)
    if file is not None and not file.exists():
        return [ok("database", f"none yet: headgate serve creates {file.absolute()}"), judge_keys((), host)]
    clock = SystemClock()
    try:
        store = build_store(settings, clock=clock, new_id=random_id)
    except headgate.HeadgateError as error:
        return [
            fail("database", str(error), "correct `database` in the settings, or do what it says"),
            judge_keys(None, host),
        ]
    opened = await open_store(store, clock, schema=schema_number(settings))
    stored = judge_stored(opened.stored_bytes, settings.limits.tenant_bytes)
    return [opened.finding, stored, judge_keys(opened.keys, host)]


async def _front(settings: Settings, environment: Mapping[str, str]) -> list[Finding]:
    address = settings.address
    if (trouble := taken(address.host, address.port)) is None:
        return [ok("port", f"{settings.listen} is free")]
    who = await asyncio.to_thread(who_listens, address.port)
    by = f" by {who}" if who else ""
    transport = Transport()
    try:
        match await _readiness(transport, settings.listen):
            case "ready":
                found = ok("port", f"{settings.listen} is served{by}: a gateway answers there")
                return [found, *await _running(transport, settings.listen, environment)]
            case str(status):
                found = fail(
                    "port",
                    f"{settings.listen} is served{by}: a gateway answers there, but it is not ready ({status})",
                    "its log says why; database_lost: stop all processes, then start them again",
                )
                return [found]
    finally:
        await transport.aclose()
    return [
        fail("port", f"{settings.listen}: {trouble}{by}", "stop that process, or set another `listen`"),
    ]


async def _readiness(transport: Transport, listen: str) -> str | None:
    """What the gateway there says of itself; None: no gateway answers."""
    try:
        with await transport.send(
            Endpoint(f"http://{listen}/health/ready", method="GET"), limits=_GREETING
        ) as response:
            answer = msgspec.json.decode(await response.read(1000), type=_Readiness)
            return "ready" if response.status == 200 else answer.status
    except (TransportError, msgspec.DecodeError):
        return None


async def _running(transport: Transport, listen: str, environment: Mapping[str, str]) -> list[Finding]:
    """What the gateway there has learned of its upstreams."""
    key = environment.get(KEY_VARIABLE)
    headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
    try:
        endpoint = Endpoint(f"http://{listen}/queue/status", method="GET", headers=headers)
        with await transport.send(endpoint, limits=_GREETING) as response:
            body = await response.read(_LONGEST_STATUS)
            if response.status in {401, 403}:
                return [not_shown(listen)]
            if response.status != 200:
                return [not_read(f"it answers {response.status}")]
            return list(judge_gates(msgspec.json.decode(body, type=Status).upstreams))
    except (TransportError, msgspec.DecodeError, ValueError) as error:
        return [not_read(str(error))]


async def _machine(settings: Settings, environment: Mapping[str, str]) -> list[Finding]:
    clock = SystemClock()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = UNLIMITED if hard == resource.RLIM_INFINITY else hard
    ours = list(filter(None, (Path(headgate.__file__), database_file(settings))))
    return [
        judge_clock(clock.utc(), newest_change(ours)),
        judge_files(limit, settings.limits.connections),
        judge_proxies(environment),
    ]


async def _upstreams(settings: Settings) -> list[Finding]:
    transports = Transports()
    try:
        asking = [
            _ask(settings, model, index, asked, transports)
            for model, index, asked in upstreams_of(settings.models)
        ]
        return await asyncio.gather(*asking) or [only_simulated()]
    finally:
        await transports.aclose()


async def _ask(settings: Settings, model: str, index: int, asked: Asked, transports: Transports) -> Finding:
    chosen = settings.models[model]
    upstream = chosen.upstreams[index]
    surroundings = Surroundings(
        clock=SystemClock(), chance=lambda: 0.5, timeouts=chosen.timeouts, transports=transports
    )
    try:
        # In a family any name will do: it is not looked for.
        provider: Provider = PROVIDERS[upstream.provider].build(
            upstream.model or "simulated", upstream.options, surroundings
        )
    except (InvalidSettings, headgate.HeadgateError) as error:
        return fail(asked.check, str(error), "correct the settings")
    try:
        return await ask_upstream(asked, provider)
    finally:
        await provider.aclose()
