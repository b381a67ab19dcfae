"""Where the chaos tests run: on each store, with real processes, none of which outlives its test."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import postgres
import pytest
from chaos.books import Books
from chaos.world import World, world
from crash.conftest import family, nursery, site
from crash.harness import Family, Site

__all__ = ["family", "nursery", "site"]
Scene = Callable[[World], Awaitable[None]]


@dataclass
class Theatre:
    """Plays a scene in a world of its own; afterwards there are books to audit."""

    family: Family
    server: postgres.Server | None

    @property
    def kind(self) -> str:
        return self.family.site.kind

    def play(self, scene: Scene, *, seed: int, **options: Any) -> Books:
        async def play() -> Books:
            async with world(self.family, seed=seed, server=self.server, **options) as made:
                await scene(made)
            return made.books

        return asyncio.run(play())


@pytest.fixture
def theatre(family: Family, site: Site, request: pytest.FixtureRequest) -> Theatre:
    server = request.getfixturevalue("postgres_server") if site.kind == "postgres" else None
    return Theatre(family, server)
