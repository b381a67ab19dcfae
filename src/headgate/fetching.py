"""Asking a URL that somebody gave, safely: private addresses are refused, sizes and times are bounded."""

from headgate.transport.fetch import Fetched, Fetcher, FetchRules


async def fetch(url: str, rules: FetchRules | None = None) -> Fetched:
    """What is at the URL, after redirects; every address on the way is checked.

    Raises `ProviderFailure`: refused addresses as `rejected`, trouble on the way as `transient`.
    """
    return await Fetcher(rules).fetch(url)
