"""Durable jobs at work: tasks, the worker that runs them, the upkeep behind it. Knows the store only by its port."""
