"""Opening: migrations by several nodes at once, old and new schemas, URLs and what is shown of them."""

import asyncio

import pytest
from stores.postgres_stage import a_job, all_ids, new_id, opened, run_sql

from headgate.core.errors import SettingsError, StoreUnavailable
from headgate.core.ports.store import StoreHealth
from headgate.machine.clock import SystemClock
from headgate.stores import sql
from headgate.stores.postgres import PostgresStore
from headgate.stores.postgres.url import read_url

NEWEST = len(sql.migrations("headgate.stores.postgres.migrations"))


def a_store(url: str) -> PostgresStore:
    return PostgresStore(url, clock=SystemClock(), new_id=new_id)


def test_ten_nodes_that_start_at_once_migrate_once(postgres_url: str) -> None:
    """A deployment starts them all in the same second, on an empty database."""

    async def main() -> None:
        stores = [a_store(postgres_url) for _ in range(10)]
        await asyncio.gather(*(store.open() for store in stores))
        secrets = {store.secret for store in stores}
        await asyncio.gather(*(store.aclose() for store in stores))
        applied = await run_sql(postgres_url, "select number from headgate.migrations")

        assert sorted(row[0] for row in applied) == list(range(1, NEWEST + 1))
        assert len(secrets) == 1

    asyncio.run(main())


def test_a_newer_schema_is_refused(postgres_url: str) -> None:
    """An old node that comes back after an upgrade must not write into what it does not understand."""

    async def main() -> None:
        async with opened(postgres_url):
            pass
        await run_sql(postgres_url, "insert into headgate.migrations values (99)", "select 1")
        with pytest.raises(SettingsError, match=f"schema 99, this headgate knows {NEWEST}"):
            await a_store(postgres_url).open()

    asyncio.run(main())


def test_a_user_without_rights_to_create_anything_can_work(postgres_url: str) -> None:
    """Migrations by the owner, everyday work by somebody who may do no more than that."""

    async def main() -> None:
        async with opened(postgres_url):
            pass
        await run_sql(
            postgres_url,
            "drop role if exists worker",
            "create role worker login",
            "grant usage on schema headgate to worker",
            "grant select, insert, update, delete on all tables in schema headgate to worker",
            "select 1",
        )
        job = a_job()
        async with opened(postgres_url.replace("postgres@", "worker@")) as store:
            await store.accept([job], now=job.run_at)
            assert await all_ids(store) == [job.id]
        await run_sql(postgres_url, "drop owned by worker", "drop role worker", "select 1")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("/postgres", "/nowhere"), "does not exist"),
        (("postgres@", "nobody:s3cret@"), "nobody"),
    ],
)
def test_what_the_operator_must_mend_is_a_settings_error(
    postgres_url: str, change: tuple[str, str], message: str
) -> None:
    """No waiting will help: it is told as a mistake in the settings, without the password."""
    url = (
        postgres_url.replace("/postgres", "/nowhere")
        if change[0].startswith("/")
        else postgres_url.replace(*change)
    )

    with pytest.raises(SettingsError, match=message) as caught:
        asyncio.run(a_store(url).open())

    assert "s3cret" not in str(caught.value)


def test_a_server_that_is_not_there_is_unavailable_at_once() -> None:
    """Refused is known immediately; the start may try again."""
    url = "postgresql://u:s3cret@127.0.0.1:1/db"

    with pytest.raises(StoreUnavailable) as caught:
        asyncio.run(asyncio.wait_for(a_store(url).open(), 5))

    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:s3cret@host:5432/db", "postgresql://u@host:5432/db"),
        ("postgres://u:s3cret@host/db?sslmode=require&password=s3cret", "postgres://u@host/db"),
        ("postgresql://u:s3cret@a:1,b:2/db?target_session_attrs=any", "postgresql://u@a:1,b:2/db"),
        ("postgresql:///db?host=/tmp&user=u&password=s3cret", "postgresql:///db"),
    ],
)
def test_the_password_is_never_shown(url: str, shown: str) -> None:
    store = a_store(url)

    assert store.name == f"postgres {shown}"
    assert "s3cret" not in store.name
    assert store.health is StoreHealth.OK


@pytest.mark.parametrize(
    "url", ["postgresql://u:s3@cret@host/db", "mysql://u:s3cret@h/d", "postgresql://u:s3/x@h/d"]
)
def test_a_url_that_cannot_be_read_is_refused_without_being_quoted(url: str) -> None:
    """An @ in a password that is not percent-encoded: whatever is shown of it could be the password."""
    with pytest.raises(SettingsError) as caught:
        read_url(url)

    assert "s3" not in str(caught.value)


def test_our_own_parameters_are_taken_out_of_the_url() -> None:
    """asyncpg would hand them to the server, which knows nothing of them."""
    address = read_url("postgresql://h/d?statement_cache_size=0&sslmode=prefer")

    assert address.dsn == "postgresql://h/d?sslmode=prefer"
    assert (address.statement_cache_size, address.listen) == (0, False)
    assert read_url("postgresql://h/d").listen
    assert read_url("postgresql://h/d?statement_cache_size=0&listen=on").listen
    with pytest.raises(SettingsError, match="statement_cache_size"):
        read_url("postgresql://h/d?statement_cache_size=many")
    with pytest.raises(SettingsError, match="listen"):
        read_url("postgresql://h/d?listen=perhaps")


def test_without_a_statement_cache_all_goes_through_transactions(postgres_url: str) -> None:
    """As behind PgBouncer: prepare and execute must not be torn apart, and nothing stays in a session."""

    async def main() -> None:
        async with opened(f"{postgres_url}?statement_cache_size=0") as store:
            jobs = [a_job() for _ in range(5)]
            await asyncio.gather(*(store.accept([job], now=job.run_at) for job in jobs))
            assert len(await all_ids(store)) == 5
            prepared = await store._database.read(
                "select count(*) from pg_prepared_statements where name <> ''"
            )
            assert prepared[0][0] == 0

    asyncio.run(main())
