"""Asking a URL that somebody gave, safely: private addresses are refused, sizes and times are bounded."""

from collections.abc import Mapping

from headgate.transport.fetch import Fetched, Fetcher, FetchRules


async def fetch(
    url: str, rules: FetchRules | None = None, *, headers: Mapping[str, str] | None = None
) -> Fetched:
    """What is at the URL, after redirects; every address on the way is checked. `headers` stay with the first origin.

    Raises `ProviderFailure`: refused addresses and what is too large as `rejected`, trouble on the way as `transient`.
    """
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in (headers or {}).items()]
    return await Fetcher(rules).fetch(url, headers=raw)
