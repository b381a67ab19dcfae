"""How Anthropic is reached, as one checked record. Keys and headers never show in its repr or its messages."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from headgate.core.problems import Review
from headgate.providers.addresses import (
    check_base_url,
    check_ca_file,
    check_headers,
    check_names,
    check_query,
    check_secret,
)

BASE_URL: Final = "https://api.anthropic.com"
MAX_TOKENS: Final = 4096
_CREDENTIALS: Final = frozenset({"x-api-key", "authorization"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AnthropicOptions:
    """`max_tokens` is the bound of an answer whose request names none: Anthropic wants one."""

    base_url: str = BASE_URL
    """Without or with `/v1` at its end."""
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with every call, such as `anthropic-beta`; they win over our own."""
    query: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_file: str | None = None
    max_tokens: int = MAX_TOKENS

    def __post_init__(self) -> None:
        review = Review()
        check_base_url(review, self.base_url)
        check_secret(review, "api_key", self.api_key)
        check_headers(review, self.headers)
        check_query(review, self.query)
        check_ca_file(review, self.ca_file)
        review.number("max_tokens", self.max_tokens, least=1, whole=True)
        if not review.problems and self._nobody_will_let_us_in():
            review.add("api_key", 'is missing; write api_key: "${ANTHROPIC_API_KEY}"')
        review.refuse()

    def _nobody_will_let_us_in(self) -> bool:
        """Another base URL may be a gateway that wants no key."""
        given = {name.lower() for name in self.headers}
        return self.api_key is None and self.base_url == BASE_URL and given.isdisjoint(_CREDENTIALS)

    @property
    def secrets(self) -> tuple[str, ...]:
        key = (self.api_key,) if self.api_key else ()
        return (*key, *self.headers.values(), *self.query.values())


def read_options(given: Mapping[str, Any]) -> AnthropicOptions:
    """The record out of an upstream's options; every mistake is in the one error raised."""
    check_names("anthropic", given, [option.name for option in fields(AnthropicOptions)])
    return AnthropicOptions(**given)
