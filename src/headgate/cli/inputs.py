"""JSON that a user hands in: on the command line, in a file, through a pipe."""

import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from headgate.core.errors import InvalidRequest

STDIN: Final = "-"


def read_input(words: str | None, file: Path | None) -> Any:
    """The input; None when there is none. `-` is stdin."""
    if words is not None and file is not None:
        raise InvalidRequest("give the input on the command line or with --file, not both", param="input")
    if STDIN in {words, str(file)}:
        return _decoded(sys.stdin.buffer.read(), "stdin")
    if file is not None:
        return _decoded(_content_of(file), f"{file}")
    return None if words is None else read_json(words, "the input")


def read_json(words: str, what: str) -> Any:
    return _decoded(words.encode(errors="surrogateescape"), what)


def read_object(words: str | None, what: str) -> dict[str, Any] | None:
    if words is None:
        return None
    value = read_json(words, what)
    if not isinstance(value, dict):
        raise InvalidRequest(f"""{what} must be a JSON object, such as '{{"source": "rss"}}'""")
    return value


def _content_of(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidRequest(f"{file} cannot be read: {why}", param="input") from error


def _decoded(content: bytes, what: str) -> Any:
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        bare = not content.lstrip().startswith((b"{", b"[", b'"'))
        advice = """ A text needs quotes of its own: '"like this"'.""" if bare else ""
        raise InvalidRequest(f"{what} is not JSON: {error}.{advice}", param="input") from error
