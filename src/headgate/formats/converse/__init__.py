"""Converse, Bedrock's chat format: requests written, answers and events read."""
