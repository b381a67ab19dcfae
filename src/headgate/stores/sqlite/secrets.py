"""Encrypted secrets, on SQLite."""

import apsw

from headgate.core.webhook_wire import KeptSecret
from headgate.stores.sqlite.base import SQL, Verbs, rows, value


class SecretVerbs(Verbs):
    """`core.ports.secrets.Secrets`."""

    async def key_check(self, mine: bytes | None = None) -> bytes | None:
        if mine is None:
            return await self._read(lambda db: value(db, SQL.key_check))

        def keep(db: apsw.Connection) -> bytes:
            db.execute(SQL.add_key_check, (mine,))
            return bytes(value(db, SQL.key_check))

        return await self._write("key_check", keep)

    async def webhook_secrets(self, owner: str, *, now: float) -> list[KeptSecret]:
        found = await self._read(lambda db: rows(db, SQL.webhook_secrets, (owner, now)))
        return [KeptSecret(sealed=sealed, expires_at=expires_at) for sealed, expires_at in found]

    async def add_webhook_secret(
        self, owner: str, sealed: bytes, *, now: float, retire_at: float | None = None
    ) -> None:
        named = {"owner": owner, "sealed": sealed, "now": now, "retire_at": retire_at}

        def add(db: apsw.Connection) -> None:
            db.execute(SQL.forget_webhook_secrets, named)
            if retire_at is not None:
                db.execute(SQL.retire_webhook_secrets, named)
            db.execute(SQL.add_webhook_secret, named)

        await self._write("add_webhook_secret", add)
