"""Connections whose other end is gone without a word are closed by keepalives, at the server and here."""

import asyncio
import socket

import pooler as poolers
import postgres
from stores.postgres_stage import opened

from headgate.stores.postgres.database import Connection

SETTINGS = {
    "tcp_keepalives_idle": "15",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "30000",
}


def _kept_alive(connection: Connection) -> dict[str, int]:
    own = connection._transport.get_extra_info("socket")
    return {
        "on": own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        "idle": own.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
        "interval": own.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
        "count": own.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
        "unanswered_ms": own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
    }


CLIENT = {"on": 1, "idle": 15, "interval": 5, "count": 3, "unanswered_ms": 30_000}


def test_the_server_asks_whether_we_are_still_there(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            for name, value in SETTINGS.items():
                assert (await store._database.read(f"show {name}"))[0][0] == value, name
            listening = store._bell._connection
            assert listening is not None
            assert await listening.fetchval("show tcp_keepalives_idle") == "15"

    asyncio.run(main())


def test_we_ask_whether_the_server_is_still_there(postgres_url: str) -> None:
    """The listening connection sends nothing by itself: without this it would wait for a dead server."""

    async def main() -> None:
        async with opened(postgres_url) as store:
            assert _kept_alive(store._bell._connection) == CLIENT
            connection = await store._database.connect()
            assert _kept_alive(connection) == CLIENT
            await connection.close()

            async def look(pooled: Connection) -> dict[str, int]:
                return _kept_alive(pooled._con)

            assert await store._database._run(look) == CLIENT

    asyncio.run(main())


def test_a_pooler_is_asked_for_no_setting_of_the_server(pooler: poolers.Pooler) -> None:
    async def main() -> None:
        async with opened(pooler.url) as store:
            for name, value in SETTINGS.items():
                assert (await store._database.read(f"show {name}"))[0][0] != value, name

            async def look(pooled: Connection) -> dict[str, int]:
                return _kept_alive(pooled._con)

            assert await store._database._run(look) == CLIENT

    asyncio.run(main())


def test_a_local_socket_needs_none_of_this(postgres_server: postgres.Server) -> None:
    async def main() -> None:
        async with opened(postgres_server.socket_url) as store:
            assert (await store._database.read("show tcp_keepalives_idle"))[0][0] == "0"

    postgres_server.clear()
    asyncio.run(main())
