"""Designs that need a store are held to it on every one."""

from jobstage import database

__all__ = ["database"]
