"""Keys for callers over HTTP: kept as they were made, revoked once and for all, told apart by tenant."""

from contracts.job_stage import NOW, an_access_key, at
from stores_under_test import Home, on_each_store

from headgate.core.access import Role
from headgate.core.call import Lane
from headgate.core.ports.store import Store


async def ids(store: Store, tenant: str | None = None) -> list[str]:
    return [kept.key.id for kept in await store.access_keys(tenant=tenant)]


@on_each_store
async def test_a_key_is_read_back_as_it_was_made(store: Store) -> None:
    """Every term of it, to the microsecond and with odd names; and the digest, by which it is found."""
    full = an_access_key(
        "full",
        name="grüße 'quoted' \\ 日",
        tenant="acme",
        role=Role.OPERATE,
        models=("summary", "ollama/*", 'odd "name"'),
        lane=Lane.BATCH,
        requests_per_minute=60,
        tokens_per_minute=10**12,
        parallel=3,
        last_four="9_xZ",
        created_at=at(NOW + 0.123456),
        expires_at=at(NOW + 3600.5),
    )
    plain = an_access_key("plain")
    await store.add_access_key(full)
    await store.add_access_key(plain)

    assert await store.access_keys() == [full, plain]
    assert [kept.digest for kept in await store.access_keys()] == [full.digest, plain.digest]


@on_each_store
async def test_keys_are_listed_newest_first(store: Store) -> None:
    """By the moment they were made, and by id where that is the same."""
    for key_id, age_s in (("a", 5), ("b", 0), ("c", 9), ("d", 0)):
        await store.add_access_key(an_access_key(key_id, created_at=at(NOW - age_s)))

    assert await ids(store) == ["d", "b", "a", "c"]


@on_each_store
async def test_adding_a_key_again_changes_nothing(store: Store) -> None:
    """Its first answer may have been lost on the way; and a revoked key does not come back by it."""
    await store.add_access_key(an_access_key())
    await store.revoke_access_key("k", now=NOW + 1)
    await store.add_access_key(an_access_key())
    [kept] = await store.access_keys()

    assert kept.key.revoked_at == at(NOW + 1)


@on_each_store
async def test_a_revoked_key_stays_revoked_since_the_first_time(store: Store) -> None:
    """It stays in the list: what it did has its name on it."""
    await store.add_access_key(an_access_key())
    await store.add_access_key(an_access_key("other"))

    assert await store.revoke_access_key("k", now=NOW + 1)
    assert await store.revoke_access_key("k", now=NOW + 9)
    assert not await store.revoke_access_key("nobody", now=NOW)
    revoked = {kept.key.id: kept.key.revoked_at for kept in await store.access_keys()}
    assert revoked == {"k": at(NOW + 1), "other": None}


@on_each_store
async def test_another_tenants_key_looks_like_none(store: Store) -> None:
    """Neither listed nor revoked, and the answer is the same as for a key that never was."""
    await store.add_access_key(an_access_key("mine"))
    await store.add_access_key(an_access_key("theirs", tenant="acme"))

    assert await ids(store, "local") == ["mine"]
    assert await ids(store, "acme") == ["theirs"]
    assert await ids(store, "nobody\0") == []
    assert not await store.revoke_access_key("theirs", now=NOW, tenant="local")
    assert not await store.revoke_access_key("never was\0", now=NOW, tenant="local")
    assert await store.revoke_access_key("theirs", now=NOW, tenant="acme")
    assert sorted(await ids(store)) == ["mine", "theirs"]


@on_each_store
async def test_the_marker_moves_with_every_change_and_with_nothing_else(store: Store, home: Home) -> None:
    """Whoever sees the same marker need not read the keys again, wherever the change was made."""
    other = await home.open()
    seen = [await store.access_marker()]
    for change in (
        other.add_access_key(an_access_key("a")),
        other.add_access_key(an_access_key("b")),
        other.revoke_access_key("a", now=NOW),
        other.revoke_access_key("b", now=NOW),
    ):
        await change
        seen.append(await store.access_marker())
    await other.revoke_access_key("a", now=NOW + 5)
    await other.add_access_key(an_access_key("b"))

    assert len(set(seen)) == len(seen)
    assert await store.access_marker() == seen[-1]
