"""Random ids, under the name by which the rooms above know them."""

from headgate.machine.ids import random_id

__all__ = ["random_id"]
