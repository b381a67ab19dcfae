"""The fields of a call from a library caller's arguments."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headgate.core.call import Message
from headgate.core.errors import InvalidRequest

_OURS: Final = ("model", "messages", "input", "stream")


def chat_fields(messages: Sequence[Message], params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters pass untouched; one that has an argument of its own is an `InvalidRequest`."""
    _check(params)
    return {"messages": messages, **params}


def embedding_fields(given: str | Sequence[str], params: Mapping[str, Any]) -> dict[str, Any]:
    _check(params)
    return {"input": given, **params}


def _check(params: Mapping[str, Any]) -> None:
    for name in _OURS:
        if name in params:
            raise InvalidRequest(f"{name} cannot be a parameter: it has an argument of its own", param=name)
