"""Decisions only: no I/O, no clock, no chance, no asyncio. Time, chance and ids are passed in."""
