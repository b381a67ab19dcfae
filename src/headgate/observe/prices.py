"""What answers cost, by the price list of genai-prices: offline, loaded in a thread, looked up once per model.

Until the list is there, and for models that are not on it, a cost is None. Knows no event and no request.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from headgate.core.answer import Usage

logger = logging.getLogger("headgate")

LOOK_AGAIN_S: Final = 60.0
"""Some prices depend on the hour, some change on a date: those are looked up anew this often."""
_PER_TOKEN: Final = 1e-6
_IDS: Final = {"openai": "openai", "anthropic": "anthropic", "bedrock": "aws"}
"""Our names of providers that send bills, and the price list's."""
_Find = Callable[[str, str | None, str | None], Any]
"""The price list: model, provider's id, address → an entry; raises LookupError for what it does not know."""


@dataclass(frozen=True, slots=True)
class Rate:
    """US dollars per token, for prompts of at least `above` tokens: it holds for all tokens of the call."""

    input: float
    output: float
    above: int = 0


class Price:
    """One upstream's price. Call it with a usage: dollars, or None when nobody knows."""

    __slots__ = ("_base_url", "_list", "_look_at", "_model", "_provider", "_rates")

    def __init__(self, prices: "Prices", provider: str, model: str, base_url: str | None) -> None:
        self._list = prices
        self._provider = provider
        self._model = model
        self._base_url = base_url
        self._rates: tuple[Rate, ...] = ()
        """From the smallest prompts to the largest."""
        self._look_at = float("-inf")

    def __call__(self, usage: Usage) -> float | None:
        if not self._list.loaded:
            return None
        if self._look_at <= self._list.now():
            self._rates, self._look_at = self._list.look(self._provider, self._model, self._base_url)
        cost = None
        for rate in self._rates:
            if usage.input_tokens >= rate.above:
                cost = usage.input_tokens * rate.input + usage.output_tokens * rate.output
        return cost


class Prices:
    """The price list. `load` returns at once; everything else never blocks and never raises."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self._find: _Find | None = None
        self._loader: threading.Thread | None = None

    @property
    def loaded(self) -> bool:
        return self._find is not None

    def load(self) -> threading.Thread:
        """Read the list in a thread: it takes a third of a second and 16 MB. Calling it again changes nothing."""
        if self._loader is None:
            self._loader = threading.Thread(target=self._load, name="headgate-prices", daemon=True)
            self._loader.start()
        return self._loader

    def of(self, provider: str, model: str | None, base_url: str | None = None) -> Price:
        """The price of a provider's model. At another address than OpenAI's own, the address says whose it is."""
        return Price(self, provider, model or "", base_url if provider == "openai" else None)

    def look(self, provider: str, model: str, base_url: str | None) -> tuple[tuple[Rate, ...], float]:
        """The rates, none when they are unknown; and when they had better be looked up again."""
        provider_id = _IDS.get(provider)
        if self._find is None or provider_id is None or not model:
            return (), float("inf")
        try:
            entry = self._find(model, None if base_url else provider_id, base_url)
            constant = not isinstance(entry.model.prices, list)
            rates = _rates(entry.model_price)
        except LookupError:
            return (), float("inf")
        except Exception:
            # Foreign code: a call that was answered must not fail because nobody can say what it cost.
            logger.exception("the price of %s/%s cannot be read; its cost stays unknown", provider, model)
            return (), float("inf")
        return rates, float("inf") if constant else self.now() + LOOK_AGAIN_S

    def _load(self) -> None:
        try:
            import genai_prices  # noqa: PLC0415 - slow: never at the start, never in the loop's thread

            def find(model: str, provider_id: str | None, address: str | None) -> Any:
                nothing = genai_prices.Usage(input_tokens=0, output_tokens=0)
                if address is not None:
                    return genai_prices.calc_price(nothing, model, provider_api_url=address)
                return genai_prices.calc_price(nothing, model, provider_id=provider_id)

            find("gpt-4o", "openai", None)  # The list itself is read at the first question.
        except Exception:
            logger.exception("the price list cannot be read; costs stay unknown")
        else:
            self._find = find


def _rates(price: Any) -> tuple[Rate, ...]:
    """An entry's prices per million tokens, flat or in tiers; a model that bills no output has no price for it."""
    asked, written = price.input_mtok, price.output_mtok
    if asked is None and written is None:
        return ()
    starts = sorted({0, *_starts(asked), *_starts(written)})
    return tuple(
        Rate(_at(asked, start) * _PER_TOKEN, _at(written, start) * _PER_TOKEN, start) for start in starts
    )


def _starts(price: Any) -> list[int]:
    # A tier begins with the first token above its threshold.
    return [tier.start + 1 for tier in getattr(price, "tiers", ())]


def _at(price: Any, tokens: int) -> float:
    """Dollars per million for a prompt of so many tokens."""
    rate = getattr(price, "base", price)
    for tier in getattr(price, "tiers", ()):
        rate = tier.price if tokens > tier.start else rate
    return float(rate or 0)
