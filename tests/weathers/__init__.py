"""Weathers: what an upstream does to its callers, and what the callers get, with Headgate and without."""
