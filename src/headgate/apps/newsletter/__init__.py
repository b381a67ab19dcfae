"""The newsletter: reads feeds, judges what is new against a profile of interests, and mails what is worth it."""

import headgate
from headgate.apps.newsletter.options import NewsletterOptions

__all__ = ["NAME", "NewsletterOptions", "newsletter_app"]

NAME = "newsletter"


def newsletter_app(_options: NewsletterOptions) -> headgate.App:
    """It runs as a command and serves nothing: being listed in the settings gives it its options."""
    return headgate.App(name=NAME)
