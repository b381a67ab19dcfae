"""How bookmarks are mounted: the task, the API, the page. Time, chance and the network come in here."""

import importlib.util
import secrets
import time
from collections.abc import Sequence

import headgate
from headgate.apps.bookmarks.desk import Desk
from headgate.apps.bookmarks.options import BookmarkOptions
from headgate.apps.bookmarks.page import page_routes
from headgate.apps.bookmarks.processing import bookmark_task
from headgate.apps.bookmarks.reading import EXTRACT, MISSING_EXTRA, Fetch
from headgate.apps.bookmarks.routes import Api
from headgate.apps.bookmarks.spending import Spending
from headgate.apps.untrusted import Parser


def build(options: BookmarkOptions, *, fetch: Fetch = headgate.fetch) -> headgate.App:
    """The application of these options."""
    if importlib.util.find_spec("trafilatura") is None:
        raise headgate.SettingsError(MISSING_EXTRA)

    def routes(gateway: headgate.Gateway) -> Sequence[headgate.AppRoute]:
        return [*Api(Desk(gateway, new_bookmark_id, options), options).routes(), *page_routes()]

    spending, parser = Spending(options, lambda: secrets.token_hex(8)), Parser(EXTRACT)
    return headgate.App(
        name="bookmarks",
        tasks=[bookmark_task(options, spending, fetch, parser)],
        routes=routes,
        close=parser.close,
    )


def new_bookmark_id() -> str:
    """It begins with its time: lists go by it."""
    return f"bm_{int(time.time() * 1000):012x}{secrets.token_hex(8)}"
