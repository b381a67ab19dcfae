"""What is said to a client that is turned away before the application sees it. Pure."""

import math
import random
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import msgspec

Refuse = Callable[[int, str, str, float | None], bytes]
"""(status, code, message, retry_after_s) → the JSON body of a refusal."""

_MAY_RETRY: Final = frozenset({408, 503})


class Refused(Exception):
    """The request is answered with an error, and the connection closed."""

    def __init__(self, status: int, code: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s


def malformed(message: str) -> Refused:
    return Refused(400, "invalid_request", message)


def late(part: str) -> Refused:
    return Refused(408, "invalid_request", f"the {part} of the request did not arrive in time")


def internal() -> Refused:
    return Refused(500, "internal", "something broke inside the server; its log says what")


def draining() -> Refused:
    return _come_back("draining", "the server is shutting down")


def overcrowded() -> Refused:
    return _come_back("too_many_connections", "too many connections are open here")


def _come_back(code: str, message: str) -> Refused:
    """Soon, but not all at once."""
    return Refused(503, code, message, 5.0 * random.uniform(0.75, 1.25))


def openai_error(status: int, code: str, message: str, _retry_after_s: float | None) -> bytes:
    """The body in OpenAI's shape."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code}})


def refusal(refused: Refused, refuse: Refuse) -> bytes:
    """The whole answer, headers included."""
    body = refuse(refused.status, refused.code, refused.message, refused.retry_after_s)
    lines = [
        f"HTTP/1.1 {refused.status} {HTTPStatus(refused.status).phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
        # Nobody has seen this request before: its name is made here.
        f"x-request-id: req_{random.getrandbits(128):032x}",
    ]
    if refused.retry_after_s is not None:
        lines.append(f"retry-after: {math.ceil(refused.retry_after_s)}")
        lines.append(f"retry-after-ms: {round(refused.retry_after_s * 1000)}")
    if refused.status not in _MAY_RETRY:
        lines.append("x-should-retry: false")
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body
