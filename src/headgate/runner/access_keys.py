"""Keys for callers over HTTP, as operators handle them: made, listed, revoked."""

import hmac
import os
from collections.abc import Callable, Sequence

from headgate.core.access import AccessKey, AccessTerms, IssuedKey, KeptKey, choose, issue
from headgate.core.errors import InvalidRequest
from headgate.core.key_text import PREFIX, RANDOM_BYTES, digest_of
from headgate.runner.durable import Durable


class AccessKeys:
    """What `headgate keys` does."""

    def __init__(self, durable: Durable, new_id: Callable[[], str]) -> None:
        self._durable = durable
        self._new_id = new_id

    async def create(self, terms: AccessTerms) -> IssuedKey:
        """A new key. Its text is in what is returned and nowhere else."""
        await self._durable.start()
        store = self._durable.store
        issued = issue(
            terms,
            key_id=f"key_{self._new_id()}",
            random=os.urandom(RANDOM_BYTES),
            secret=store.secret,
            now=self._durable.clock.utc(),
        )
        await store.add_access_key(issued.kept)
        return issued

    async def list(self, *, tenant: str | None = None) -> "list[AccessKey]":
        """Newest first, revoked and expired ones too."""
        await self._durable.start()
        return [kept.key for kept in await self._durable.store.access_keys(tenant=tenant)]

    async def revoke(self, word: str, *, tenant: str | None = None) -> AccessKey:
        """The key of this id, name or last four characters, or the key itself; returned as it was before."""
        await self._durable.start()
        store = self._durable.store
        kept = await store.access_keys(tenant=tenant)
        if word.startswith(PREFIX):
            word = _id_of(word, kept, store.secret)
        key = choose([one.key for one in kept], word, now=self._durable.clock.utc())
        await store.revoke_access_key(key.id, now=self._durable.clock.utc().timestamp(), tenant=key.tenant)
        return key


def _id_of(text: str, kept: Sequence[KeptKey], secret: bytes) -> str:
    """Somebody has found a key where it should not be. No message repeats it."""
    digest = digest_of(text.encode(errors="replace"), secret)
    for one in kept:
        if hmac.compare_digest(one.digest, digest):
            return one.key.id
    raise InvalidRequest("there is no such key; headgate keys list shows them all", param="key")
