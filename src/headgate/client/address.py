"""A gateway's URL: as somebody wrote it, and as it is asked and shown."""

from headgate.core.errors import SettingsError
from headgate.transport.endpoint import split_url
from headgate.transport.errors import UrlRefused


def read_address(url: str) -> str:
    """Without a `/` or `/v1` at its end. What may hold a secret is refused without being repeated."""
    if "@" in url:
        raise SettingsError(
            "the gateway's URL must not hold a user name or password; an access key goes into HEADGATE_API_KEY"
        )
    if "?" in url or "#" in url:
        raise SettingsError("the gateway's URL must not hold a query or a fragment")
    address = url.rstrip("/").removesuffix("/v1").rstrip("/")
    try:
        split_url(address)
    except UrlRefused as error:
        raise SettingsError(f"the gateway at {address[:100]!r} cannot be asked: {error}") from error
    return address
