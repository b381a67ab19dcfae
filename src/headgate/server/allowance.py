"""`x-ratelimit-*`: how a caller with limits stands, told with every answer it gets."""

from collections.abc import Iterable

from headgate.core.metering import Allowance


def allowance_headers(allowances: Iterable[Allowance]) -> list[tuple[bytes, bytes]]:
    """Under OpenAI's names: what may be used a minute, what is left, and when all of it will be there again."""
    return [header for allowance in allowances for header in _headers(allowance)]


def _headers(allowance: Allowance) -> Iterable[tuple[bytes, bytes]]:
    what = allowance.what.encode()
    yield b"x-ratelimit-limit-" + what, b"%d" % allowance.most
    yield b"x-ratelimit-remaining-" + what, b"%d" % allowance.left
    yield b"x-ratelimit-reset-" + what, b"%.3fs" % allowance.reset_s
