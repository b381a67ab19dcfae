"""What is kept is kept on every store."""

from jobstage import database

__all__ = ["database"]
