"""Ollama's errors are one text and no code: the status is all there is to go by."""

from collections.abc import Callable, Mapping
from typing import Any

from headgate.core.failures import Failure, FailureKind
from headgate.providers.exchange import Told


def read_error(body: Any, status: int | None) -> Told | None:
    error = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, str):
        return None
    # In Ollama's own words a 404 is always about the model: a wrong path is answered in plain text.
    return Told(error, ("model_not_found",) if status == 404 else ())


def hint_for(model: str) -> Callable[[Failure], str]:
    def hint(failure: Failure) -> str:
        if failure.code == "model_not_found":
            return f"run: ollama pull {model}"
        if failure.kind is not FailureKind.MISCONFIGURED:
            return ""
        return (
            "check the headers: this server wants a key" if failure.status in {401, 403} else "check base_url"
        )

    return hint
