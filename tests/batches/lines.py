"""Input files for batches, and what came of their lines."""

import json
from collections.abc import Iterable
from typing import Any, Final

from headgate.gateway import Gateway

CHAT: Final = "/v1/chat/completions"
EMBEDDINGS: Final = "/v1/embeddings"


def line(custom_id: str, *, model: str = "m", content: str = "", url: str = CHAT, **more: Any) -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": content or f"say {custom_id}"}]}
    if url == EMBEDDINGS:
        body = {"model": model, "input": custom_id}
    asked = {"custom_id": custom_id, "method": "POST", "url": url, "body": body, **more}
    return json.dumps(asked).encode() + b"\n"


def jsonl(names: Iterable[object], **options: Any) -> bytes:
    return b"".join(line(f"line {name}", **options) for name in names)


async def read(gateway: Gateway, file_id: str | None, *, tenant: str = "local") -> dict[str, Any]:
    """A file's lines by custom id; one that stands there twice is a failure."""
    if file_id is None:
        return {}
    path = await gateway.files.content(file_id, tenant=tenant)
    lines = [json.loads(one) for one in path.read_bytes().splitlines()]
    found = {one["custom_id"]: one for one in lines}
    assert len(found) == len(lines)
    return found
