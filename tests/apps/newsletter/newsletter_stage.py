"""A newsletter on a real gateway and a real database in virtual time, with feeds as files."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

from headgate import wiring
from headgate.apps.newsletter.environment import Bedrock
from headgate.apps.newsletter.judging_model import JudgingModel, simulated_judge
from headgate.apps.newsletter.ledger import Ledger
from headgate.apps.newsletter.mail import Mail
from headgate.apps.newsletter.options import NewsletterOptions
from headgate.apps.newsletter.report import Report
from headgate.apps.newsletter.run import Material, Newsletter, Plan
from headgate.core.events import AttemptEnded, Event
from headgate.gateway import Gateway
from headgate.planner.virtual import World
from headgate.providers.simulated import SimulatedProvider

NEWEST = datetime(2026, 1, 1, tzinfo=UTC)
TOPICS = ("A queue that holds", "Security release", "A new venue", "Huge discount")
BEDROCK_RETRY = Bedrock().model_settings({}, interval_s=0)["retry"]
"""What the variables of the design come to."""


def rss(items: Sequence[tuple[str, str, datetime | None]], title: str = "A feed") -> str:
    """Items as (title, link, date)."""
    entries = "".join(
        f"<item><title>{name}</title><link>{link}</link><description>About {name}.</description>"
        + (f"<pubDate>{format_datetime(date)}</pubDate>" if date else "")
        + "</item>"
        for name, link, date in items
    )
    return f'<?xml version="1.0"?><rss version="2.0"><channel><title>{title}</title>{entries}</channel></rss>'


def write_feeds(folder: Path, items: int, feeds: int = 4) -> Path:
    """So many items in so many files; the list that names them."""
    folder.mkdir(parents=True, exist_ok=True)
    for feed in range(feeds):
        written = [
            (
                f"{TOPICS[number % len(TOPICS)]} {number}",
                f"https://site{feed}.example/Posts/{number}",
                NEWEST - timedelta(minutes=number),
            )
            for number in range(feed, items, feeds)
        ]
        (folder / f"feed{feed}.xml").write_text(rss(written, f"Site {feed}"))
    listed = folder / "feeds.yaml"
    listed.write_text("\n".join(f"- feed{feed}.xml" for feed in range(feeds)))
    return listed


@dataclass
class Stage:
    world: World
    gateway: Gateway
    newsletter: Newsletter
    options: NewsletterOptions
    ended: list[tuple[float, AttemptEnded]] = field(default_factory=list)
    """When each attempt was over."""

    @property
    def provider(self) -> SimulatedProvider:
        found = self.gateway.routes.find("m").upstreams[0].provider
        assert isinstance(found, SimulatedProvider)
        return found

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.gateway)

    def hear(self, event: Event) -> None:
        if isinstance(event, AttemptEnded):
            self.ended.append((self.world.clock.now(), event))

    async def run(self, run_id: str = "r1", **plan: Any) -> tuple[Report, Mail | None]:
        return await self.newsletter.run(Plan(run_id=run_id, **plan))


@asynccontextmanager
async def open_stage(
    world: World,
    folder: Path,
    upstream: Mapping[str, Any] | None = None,
    *,
    items: int = 12,
    retry: Mapping[str, Any] = BEDROCK_RETRY,
    parallel: int = 5,
    others: Sequence[Mapping[str, Any]] = (),
    **options: Any,
) -> AsyncIterator[Stage]:
    """The model `m` judges as the simulation does, unless `upstream` says otherwise."""
    if "feeds" not in options:
        options |= {"feeds": write_feeds(folder / "feeds", items), "local_feeds": True}
    chosen = NewsletterOptions(**{"out": folder / "out", **options})
    behind = {
        "provider": "simulated",
        "latency_s": 1.0,
        "slots": parallel,
        "answers_by_pattern": simulated_judge(),
        **(upstream or {}),
    }
    fallbacks = [{"provider": "simulated", **other} for other in others]
    tree = {
        "data_dir": str(folder / "data"),
        "models": {"m": {"upstreams": [behind, *fallbacks], "retry": dict(retry)}},
    }
    gateway = wiring.build(wiring.read_settings(tree, env={}), clock=world.clock, chance=world.chance)
    model = JudgingModel("m", parallel, "models.m.upstreams")
    newsletter = Newsletter(gateway, chosen, Material.read(chosen), model, utc=world.clock.utc)
    stage = Stage(world, gateway, newsletter, chosen)
    gateway.listen(stage.hear)
    try:
        yield stage
    finally:
        await gateway.aclose(drain_s=0.0)
