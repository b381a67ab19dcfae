"""The OpenAI Batch API over any provider: files on the disk, and batches whose lines are jobs."""
