"""The newsletter: reads feeds, judges what is new against a profile of interests, and mails what is worth it."""

from datetime import UTC, datetime
from typing import Final

import headgate
from headgate.apps.newsletter.ledger import Ledger, failed_in_a_row
from headgate.apps.newsletter.options import NewsletterOptions

__all__ = ["NAME", "NewsletterOptions", "newsletter_app"]

NAME = "newsletter"
LATEST: Final = 10
"""So many runs are looked at for those that failed in a row."""


def newsletter_app(_options: NewsletterOptions) -> headgate.App:
    """It runs as a command and serves nothing: being listed in the settings gives it its options, and alerts."""
    return headgate.App(name=NAME, failed_runs=_failed_runs)


async def _failed_runs(gateway: headgate.Gateway) -> int:
    runs = await Ledger(gateway).runs(LATEST)
    return failed_in_a_row(runs, datetime.fromtimestamp(gateway.now(), UTC))
