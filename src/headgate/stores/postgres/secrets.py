"""Encrypted secrets, on PostgreSQL."""

from headgate.core.webhook_wire import KeptSecret
from headgate.stores.postgres.base import SQL, Verbs
from headgate.stores.postgres.database import Connection


class SecretVerbs(Verbs):
    """`core.ports.secrets.Secrets`."""

    async def key_check(self, mine: bytes | None = None) -> bytes | None:
        if mine is not None:
            await self._database.write("key_check", SQL.add_key_check, mine, again=True)
        rows = await self._database.read(SQL.key_check)
        return rows[0][0] if rows else None

    async def webhook_secrets(self, owner: str, *, now: float) -> list[KeptSecret]:
        rows = await self._database.read(SQL.webhook_secrets, owner, now)
        return [KeptSecret(sealed=row[0], expires_at=row[1]) for row in rows]

    async def add_webhook_secret(
        self, owner: str, sealed: bytes, *, now: float, retire_at: float | None = None
    ) -> None:
        async def add(connection: Connection) -> None:
            await connection.execute(SQL.lock_webhook_secrets, owner)
            await connection.execute(SQL.forget_webhook_secrets, owner, now)
            if retire_at is not None:
                await connection.execute(SQL.retire_webhook_secrets, owner, retire_at)
            await connection.execute(SQL.add_webhook_secret, owner, sealed, now, retire_at is not None)

        await self._database.transact("add_webhook_secret", add)
