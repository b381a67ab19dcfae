"""Who has a copy of the database but not the key cannot sign webhooks; who shares a tenant's secret cannot forge alerts."""

import asyncio
import base64
import contextlib
import json
import shutil
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import pytest
from observe.receivers_stage import Receiver
from server.conftest import database, own_directory, play
from server.http.front_stage import Play, eventually
from server.stage import House, opened

from headgate import wiring
from headgate.core.errors import SettingsError
from headgate.core.webhook_wire import derived_secret
from headgate.gateway import Gateway

__all__ = ["database", "own_directory", "play"]
ONE_KEY, OTHER_KEY = "one key of sixteen characters and more", "another key of sixteen characters and more"
BODY = {"model": "simulated/instant", "messages": [{"role": "user", "content": "hello"}]}


@contextlib.asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver(asyncio.get_running_loop().time)
    await receiver.up()
    try:
        yield receiver
    finally:
        receiver.close()


def settings_of(database: str, data_dir: str = "data", **more: Any) -> dict[str, Any]:
    return {"data_dir": data_dir, "database": database, "webhooks": {"allow_private": True}, **more}


def gateway_of(settings: dict[str, Any]) -> Gateway:
    return wiring.build(wiring.read_settings(settings, env={}))


async def start(settings: dict[str, Any]) -> None:
    """As `headgate serve` and `headgate work` begin."""
    gateway = gateway_of(settings)
    try:
        await gateway.durable.join()
    finally:
        await gateway.aclose(0.0)


def copied_database() -> bytes:
    """What a thief has of `data`, now in `copy`: the database, and the log beside it."""
    Path("copy").mkdir()
    files = [Path(shutil.copy(file, "copy")) for file in Path("data").glob("headgate.db*")]
    return b"".join(file.read_bytes() for file in files)


def key_files(folder: str) -> dict[str, int]:
    """Their modes by name."""
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in Path(folder).glob("*secret*")}


async def told_of_a_job(house: House, receiver: Receiver) -> None:
    before = len(receiver.received)
    await house.gateway.jobs.submit("chat", BODY, webhook=receiver.url())
    await eventually(lambda: len(receiver.received) > before)


def test_a_copy_of_the_database_alone_yields_no_secret(play: Play) -> None:
    async def scene() -> None:
        async with receiving() as receiver, opened(settings_of("sqlite"), work=True) as house:
            await told_of_a_job(house, receiver)
            secret = await house.gateway.webhooks.secret()
            alerts = await house.gateway.webhooks.secret(alerts=True)
            fingerprint = house.gateway.durable.store.secret
            assert receiver.received[0].is_signed_with(secret)
            stolen = copied_database()

        for one in (secret, alerts):
            raw = base64.b64decode(one.removeprefix("whsec_"))
            assert one.encode() not in stolen
            assert raw not in stolen
            assert raw.hex().encode() not in stolen
        assert derived_secret("local", fingerprint) not in {secret, alerts}

        with pytest.raises(
            SettingsError, match=r"encrypted with a key that is not here\. Copy .*secret\.key"
        ):
            await start(settings_of("sqlite", "copy"))
        assert not key_files("copy"), "another key would not open it, either"
        for settings in (
            settings_of("sqlite", "copy", secret_key=OTHER_KEY),
            settings_of("sqlite", "data", secret_key=OTHER_KEY),
        ):
            with pytest.raises(SettingsError, match="encrypted with another key than secret_key"):
                await start(settings)
        gateway = gateway_of(settings_of("sqlite", "copy"))
        with pytest.raises(SettingsError, match="key that is not here"):
            await gateway.webhooks.secret()
        await gateway.aclose(0.0)

        shutil.copy("data/secret.key", "copy/secret.key")
        gateway = gateway_of(settings_of("sqlite", "copy"))
        assert await gateway.webhooks.secret() == secret
        await gateway.aclose(0.0)

    play(scene)


def test_a_dump_of_postgres_yields_no_secret(play: Play, postgres_url: str) -> None:
    async def scene() -> None:
        gateway = gateway_of(settings_of(postgres_url))
        secret = await gateway.webhooks.rotate()
        fingerprint = gateway.durable.store.secret
        await gateway.aclose(0.0)
        connection = await asyncpg.connect(postgres_url)
        kept = [
            bytes(row[0]) for row in await connection.fetch("select sealed from headgate.webhook_secrets")
        ]
        kept += [bytes(row[0]) for row in await connection.fetch("select value from headgate.secrets")]
        await connection.close()
        raw = base64.b64decode(secret.removeprefix("whsec_"))
        assert len(kept) == 3
        assert all(raw not in one and one not in raw for one in kept)
        assert derived_secret("local", fingerprint) != secret
        # A node elsewhere, with a data_dir of its own.
        with pytest.raises(SettingsError, match="key that is not here"):
            await start(settings_of(postgres_url, "elsewhere"))

    play(scene)


def test_nodes_with_different_keys_do_not_start_on_one_database(database: str, play: Play) -> None:
    async def scene() -> None:
        await start(settings_of(database, secret_key=ONE_KEY))
        await start(settings_of(database, secret_key=ONE_KEY))
        with pytest.raises(SettingsError, match="must be the same on all nodes") as refused:
            await start(settings_of(database, secret_key=OTHER_KEY))
        assert ONE_KEY not in str(refused.value)
        assert OTHER_KEY not in str(refused.value)
        with pytest.raises(SettingsError, match="key that is not here"):
            await start(settings_of(database))
        with pytest.raises(SettingsError, match="secret_key: must have at least 16 characters") as refused:
            gateway_of(settings_of(database, secret_key="short key"))
        assert "short key" not in str(refused.value)

    play(scene)


def test_the_key_is_made_when_it_is_needed_and_for_its_owner_only(play: Play) -> None:
    async def scene() -> None:
        await start(settings_of("sqlite"))
        assert not key_files("data")
        gateways = [gateway_of(settings_of("sqlite")) for _ in range(4)]
        secrets = await asyncio.gather(*(gateway.webhooks.secret() for gateway in gateways))
        assert len(set(secrets)) == 1
        assert key_files("data") == {"secret.key": 0o600}
        for gateway in gateways:
            await gateway.aclose(0.0)

    play(scene)


def test_a_node_that_lost_its_key_sends_nothing_unsigned(
    play: Play, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It started before the database had a key. Its deliveries wait for a node that can sign them."""

    async def scene() -> None:
        async with receiving() as receiver, opened(settings_of(postgres_url, "one"), work=True) as house:
            other = gateway_of(settings_of(postgres_url, "other"))
            await other.webhooks.secret()
            await other.aclose(0.0)
            handle = await house.gateway.jobs.submit("chat", BODY, webhook=receiver.url())
            await handle.wait(30)
            await eventually(lambda: any("cannot be signed" in record.message for record in caplog.records))
            (delivery,) = await house.gateway.webhooks.list()
            while (job := await house.gateway.jobs.get(delivery.id)).state == "running":  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
            assert (job.state, job.attempts, receiver.received) == ("pending", 0, [])
        caplog.clear()

    play(scene)


def test_a_rotated_secret_signs_beside_the_new_one(database: str, play: Play) -> None:
    async def scene() -> None:
        async with (
            receiving() as receiver,
            opened(settings_of(database, secret_key=ONE_KEY), work=True) as house,
        ):
            desk = house.gateway.webhooks
            old, others = await desk.secret(), await desk.secret(tenant="other")
            await told_of_a_job(house, receiver)
            # Another process rotates it.
            gateway = gateway_of(settings_of(database, secret_key=ONE_KEY))
            new = await gateway.webhooks.rotate()
            await gateway.aclose(0.0)
            assert await desk.secret() == new != old
            assert await desk.secret(tenant="other") == others
            await told_of_a_job(house, receiver)
        first, second = receiver.received
        assert (first.is_signed_with(old), first.is_signed_with(new)) == (True, False)
        assert (second.is_signed_with(old), second.is_signed_with(new)) == (True, True)
        assert second.headers["webhook-signature"].count("v1,") == 2

    play(scene)


def test_alerts_are_signed_with_a_secret_that_no_tenant_reads(database: str, play: Play) -> None:
    async def scene() -> None:
        async with (
            receiving() as receiver,
            opened(settings_of(database, alerts={"webhook": receiver.url("/alerts")}), work=True) as house,
        ):
            desk = house.gateway.webhooks
            handle = await desk.alert("dead_letters", fired=True, data={})
            assert handle is not None
            await handle.wait(30)
            (message,) = receiver.received
            assert message.is_signed_with(await desk.secret(alerts=True))
            assert not message.is_signed_with(await desk.secret())

    play(scene)


def test_an_alert_is_sent_when_the_disk_is_full_and_its_tenant_stores_too_much(play: Play) -> None:
    async def scene() -> None:
        limits = {"tenant_bytes": 1, "min_free_bytes": 2**50}
        async with (
            receiving() as receiver,
            opened(
                settings_of("sqlite", alerts={"webhook": receiver.url("/alerts")}, limits=limits), work=True
            ) as house,
        ):
            handle = await house.gateway.webhooks.alert("disk_full", fired=True, data={})
            assert handle is not None
            await handle.wait(30)
            assert json.loads(receiver.received[0].body)["data"]["alert"] == "disk_full"
            with contextlib.suppress(Exception):
                await house.gateway.jobs.submit("chat", BODY)
            assert await house.gateway.jobs.list(task="chat") == []

    play(scene)
