"""Encrypted secrets in the store: one check value, an owner's secrets newest first, rotated ones until they expire."""

import asyncio

from contracts.job_stage import NOW
from stores_under_test import Home, on_each_store

from headgate.core.ports.store import Store


async def sealed(
    store: Store, owner: str = "local", *, now: float = NOW
) -> list[tuple[bytes | None, float | None]]:
    return [(one.sealed, one.expires_at) for one in await store.webhook_secrets(owner, now=now)]


@on_each_store
async def test_the_first_check_value_stays(store: Store, home: Home) -> None:
    other = await home.open()
    before = await store.key_check()
    assert before in {None, b"one", b"two"}
    told = set(await asyncio.gather(store.key_check(b"one"), other.key_check(b"two")))
    assert len(told) == 1
    assert {await store.key_check(), await other.key_check(b"three")} == told


@on_each_store
async def test_an_owner_gets_one_secret_however_many_ask_at_once(store: Store, home: Home) -> None:
    assert await sealed(store) == []
    stores = [store, await home.open()]
    await asyncio.gather(*(stores[n % 2].add_webhook_secret("local", b"%d" % n, now=NOW) for n in range(20)))
    assert len(await sealed(store)) == 1
    assert await sealed(store, "other") == await sealed(store, "") == []


@on_each_store
async def test_a_rotated_secret_stays_until_it_retires(store: Store) -> None:
    await store.add_webhook_secret("local", b"1", now=NOW)
    await store.add_webhook_secret("other", b"9", now=NOW)
    await store.add_webhook_secret("local", b"2", now=NOW + 10, retire_at=NOW + 100)
    assert await sealed(store) == [(b"2", None), (b"1", NOW + 100)]
    # Again before the first has retired: that one keeps its time.
    await store.add_webhook_secret("local", b"3", now=NOW + 20, retire_at=NOW + 110)
    assert await sealed(store) == [(b"3", None), (b"2", NOW + 110), (b"1", NOW + 100)]
    assert await sealed(store, now=NOW + 100) == [(b"3", None), (b"2", NOW + 110)]
    await store.add_webhook_secret("local", b"4", now=NOW + 200, retire_at=NOW + 300)
    assert await sealed(store) == [(b"4", None), (b"3", NOW + 300)]
    assert await sealed(store, "other") == [(b"9", None)]


@on_each_store
async def test_rotations_at_once_lose_none(store: Store, home: Home) -> None:
    stores = [store, await home.open()]
    await asyncio.gather(
        *(stores[n % 2].add_webhook_secret("local", b"%d" % n, now=NOW, retire_at=NOW + 9) for n in range(10))
    )
    kept = await sealed(store)
    assert {name for name, _ in kept} == {b"%d" % n for n in range(10)}
    assert [expires_at for _, expires_at in kept] == [None, *[NOW + 9] * 9]
