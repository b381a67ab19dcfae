"""The OpenAI Batch API over any provider: files on the disk, and batches whose lines are jobs."""

from headgate.batches.batches import Batches
from headgate.batches.files import Files

__all__ = ["Batches", "Files"]
