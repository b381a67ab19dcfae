"""From settings to a newsletter that can run: used by the command line and by AWS Lambda alike."""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final

import headgate
from headgate.apps.newsletter import NAME
from headgate.apps.newsletter.alone import alone
from headgate.apps.newsletter.judging_model import choose_model, with_simulated_judges
from headgate.apps.newsletter.options import NewsletterOptions
from headgate.apps.newsletter.run import Material, Newsletter

_RUN_ID: Final = re.compile(r"(?=.{1,100}\Z)[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")


def new_run_id(now: datetime) -> str:
    """Later runs have later ids; two within a second have two."""
    return f"{now.astimezone(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def check_run_id(run_id: str) -> str:
    """It names files and mails too."""
    if _RUN_ID.fullmatch(run_id) is None:
        raise headgate.InvalidRequest(
            f"a run's id has 1–100 letters, digits, dashes, underscores and single dots, not {run_id!r:.120}",
            param="run_id",
        )
    return run_id


def options_of(settings: headgate.Settings) -> NewsletterOptions:
    """The newsletter runs whether or not the settings list it."""
    found = settings.apps.get(NAME)
    return found if isinstance(found, NewsletterOptions) else NewsletterOptions()


@asynccontextmanager
async def open_newsletter(
    settings: headgate.Settings,
    options: NewsletterOptions,
    *,
    env: Mapping[str, str],
    told: Callable[[int, int], None] = lambda _done, _total: None,
) -> AsyncIterator[Newsletter]:
    """Everything is read and checked before anything is opened."""
    material = Material.read(options)
    settings, model = choose_model(settings, options, env)
    prices = headgate.Prices()
    # The bill is to be whole: the first answers wait for the list of prices, about a second.
    await asyncio.to_thread(prices.load().join)
    with alone(settings.data_dir):
        async with headgate.open(with_simulated_judges(settings), prices=prices) as gateway:
            yield Newsletter(gateway, options, material, model, told=told)
