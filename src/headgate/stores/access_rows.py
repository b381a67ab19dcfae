"""Access keys as rows and back, the same for both databases: the statements name their columns in this order."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from headgate.core.access import AccessKey, KeptKey, Role
from headgate.core.call import Lane
from headgate.stores.rows import moment

_decode_models = msgspec.json.Decoder(tuple[str, ...]).decode


def access_row(kept: KeptKey) -> tuple[Any, ...]:
    key = kept.key
    return (
        key.id,
        key.name,
        key.tenant,
        str(key.role),
        msgspec.json.encode(key.models).decode(),
        str(key.lane),
        key.requests_per_minute,
        key.tokens_per_minute,
        key.parallel,
        key.last_four,
        kept.digest,
        *(_seconds(at) for at in (key.created_at, key.expires_at, key.revoked_at)),
    )


def read_access_row(row: Sequence[Any]) -> KeptKey:
    key = AccessKey(
        id=row[0],
        name=row[1],
        tenant=row[2],
        role=Role(row[3]),
        models=_decode_models(row[4]),
        lane=Lane(row[5]),
        requests_per_minute=row[6],
        tokens_per_minute=row[7],
        parallel=row[8],
        last_four=row[9],
        created_at=moment(row[11]),
        expires_at=moment(row[12]),
        revoked_at=moment(row[13]),
    )
    return KeptKey(key, row[10])


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()
