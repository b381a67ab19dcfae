"""What an operator can decide about bookmarks."""

from dataclasses import dataclass

import headgate


@dataclass(frozen=True, slots=True, kw_only=True)
class BookmarkOptions:
    """`apps: {bookmarks: …}` in the settings."""

    model: str = "simulated"
    daily_usd: float | None = 1.0
    """What a tenant's bookmarks may cost in a day (UTC); null: as much as they like."""
    monthly_usd: float | None = 30.0
    call_usd: float = 0.0
    """What a call is taken to cost where the price list does not know the model."""
    structured: bool = True
    """Ask the model for the contract's JSON schema; false for upstreams that refuse `response_format`."""
    allow_private: bool = False
    """Also fetch pages of this machine and of private networks, on any port."""
    page_bytes: int = 2 * 1024 * 1024
    fetch_s: float = 20.0

    def __post_init__(self) -> None:
        review = headgate.Review()
        if not self.model:
            review.add("model", "must be a model's name")
        review.number("daily_usd", self.daily_usd)
        review.number("monthly_usd", self.monthly_usd)
        review.number("call_usd", self.call_usd)
        review.number("page_bytes", self.page_bytes, least=1024, most=20 * 1024 * 1024, whole=True)
        review.number("fetch_s", self.fetch_s, above=0, most=120)
        review.refuse()
