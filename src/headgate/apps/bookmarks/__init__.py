"""Bookmarks: save an address, and its page is read and described by a model. An ordinary user of the public API."""

from headgate.apps.bookmarks.mount import build
from headgate.apps.bookmarks.options import BookmarkOptions

__all__ = ["BookmarkOptions", "build"]
