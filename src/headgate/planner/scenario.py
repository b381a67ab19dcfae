"""What a plan is made for: how the upstreams behave and what is asked of them, as checked records. Runs nothing."""

import math
import re
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Annotated, Any, Final

import msgspec

from headgate.core.call import Lane
from headgate.core.errors import SettingsError

MOST_ITEMS: Final = 100_000
_P99: Final = NormalDist().inv_cdf(0.99)
_NUMBER: Final = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+) ?"
_SPEED: Final = re.compile(f"{_NUMBER}tokens/s")
_SECONDS: Final = re.compile(f"{_NUMBER}(ms|s|min|h)?")
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, None: 1.0, "min": 60.0, "h": 3600.0}

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=31_536_000)]
Above0 = Annotated[float, msgspec.Meta(gt=0, le=31_536_000)]
Count = Annotated[int, msgspec.Meta(ge=1, le=MOST_ITEMS)]
Limit = Annotated[int, msgspec.Meta(ge=1)]
Tokens = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class Latency(msgspec.Struct, frozen=True):
    """A lognormal time to an answer; with a `sigma` of 0 it is always the median."""

    median_s: float
    sigma: float = 0.0

    @property
    def mean_s(self) -> float:
        return self.median_s * math.exp(self.sigma**2 / 2)

    @property
    def p99_s(self) -> float:
        return self.median_s * math.exp(self.sigma * _P99)


class UpstreamShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an upstream behaves, as whoever plans describes it."""

    latency: float | str
    """Seconds (`5`), median and 99th percentile (`4/12`), or a speed (`80 tokens/s`)."""
    first_token_s: Seconds = 0.0
    """Before a speed counts."""
    throttled: Share = 0.0
    """The share of calls that is answered 429 by chance."""
    retry_after_s: Seconds | None = None
    """What a 429 tells to wait; unless set, chance tells nothing and a limit the time until there is room."""
    failing: Share = 0.0
    """The share of calls that ends with 503."""
    failure_latency_s: Seconds = 0.2
    """The time to a 429 or a 503."""
    requests_per_minute: Limit | None = None
    """The upstream's real limit: above it it answers 429."""
    tokens_per_minute: Limit | None = None
    requests_per_second: Limit | None = None
    requests_per_window: tuple[Limit, Above0] | None = None
    """(requests, seconds): so many in each window of this length, then 429 until it ends."""
    max_in_flight: Limit | None = None
    """Calls at one time; more are answered 429."""
    outages: Sequence[tuple[float, float]] = ()
    """(start, end) in seconds from the beginning: every call gets 503."""

    @property
    def by_chance(self) -> bool:
        """Whether two runs can differ: waits between attempts are spread by chance, so every failure counts."""
        return self.refuses or bool(read_latency(self.latency, self.first_token_s, 1).sigma)

    @property
    def refuses(self) -> bool:
        """Some calls are not answered: by chance, above a limit, or while it is down."""
        limits = (
            self.requests_per_minute,
            self.tokens_per_minute,
            self.requests_per_second,
            self.requests_per_window,
            self.max_in_flight,
        )
        limited = any(limit is not None for limit in limits)
        return bool(self.throttled or self.failing or self.outages) or limited

    def __post_init__(self) -> None:
        read_latency(self.latency, 0.0, 1)
        if self.throttled + self.failing > 1:
            raise ValueError("throttled and failing together must be at most 1")
        for start_s, end_s in self.outages:
            if not 0 <= start_s < end_s < math.inf:
                raise ValueError(f"an outage must end after its start, not {start_s:g} to {end_s:g}")


class Load(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Work that arrives: `jobs`, `calls` (direct ones, a caller each) or `many` (one `complete_many`)."""

    jobs: Count | None = None
    calls: Count | None = None
    many: Count | None = None
    per_s: Annotated[float, msgspec.Meta(gt=0, le=100_000)] | None = None
    """Arrivals by chance at this rate; unless set, all arrive at once."""
    burst: Count | None = None
    """So many at a time, `every_s` apart."""
    every_s: Above0 | None = None
    start_s: Seconds = 0.0
    lane: Lane | None = None
    """Calls are interactive and all else is batch, unless set."""
    deadline_s: Above0 | None = None
    """How long each caller waits for the answer; of `many`, for all of them. Jobs have none."""
    come_back: bool = False
    """A refused caller asks again when it was told to, instead of leaving."""

    def __post_init__(self) -> None:
        if sum(count is not None for count in (self.jobs, self.calls, self.many)) != 1:
            raise ValueError("say exactly one of jobs, calls and many")
        if (self.burst is None) != (self.every_s is None):
            raise ValueError("burst and every_s belong together")
        if self.per_s is not None and self.burst is not None:
            raise ValueError("say per_s or burst, not both")
        if self.many is not None and (self.per_s or self.burst):
            raise ValueError("many is one call: all of it arrives at once")
        if self.jobs is not None and (self.deadline_s or self.lane is Lane.INTERACTIVE):
            raise ValueError("jobs have no deadline and no interactive lane")
        if self.come_back and self.calls is None:
            raise ValueError("only calls can come back")

    @property
    def kind(self) -> str:
        return "jobs" if self.jobs is not None else "calls" if self.calls is not None else "many"

    @property
    def count(self) -> int:
        return self.jobs or self.calls or self.many or 0

    @property
    def its_lane(self) -> Lane:
        return self.lane or (Lane.BATCH if self.calls is None else Lane.INTERACTIVE)

    def cut(self, share: float) -> "Load":
        """The first part of it."""
        return msgspec.structs.replace(self, **{self.kind: max(1, round(self.count * share))})


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One plan's question."""

    load: Load | list[Load]
    upstream: UpstreamShape | None = None
    """Every upstream of the model that has no description of its own."""
    upstreams: Mapping[str, UpstreamShape] = {}
    """By their names, `provider/model`."""
    tokens_in: Tokens = 500
    tokens_out: Tokens = 200
    finish_by_s: Above0 | None = None
    """All of the load should be done by then."""

    @property
    def loads(self) -> list[Load]:
        return [self.load] if isinstance(self.load, Load) else self.load

    @property
    def count(self) -> int:
        return sum(load.count for load in self.loads)

    @property
    def has_jobs(self) -> bool:
        return any(load.jobs is not None for load in self.loads)

    @property
    def by_chance(self) -> bool:
        """Whether two runs can differ. Upstreams without a description may do anything."""
        shapes = [*self.upstreams.values(), *([self.upstream] if self.upstream is not None else [])]
        by_load = any(load.per_s is not None or load.come_back for load in self.loads)
        return by_load or not shapes or any(shape.by_chance for shape in shapes)

    @property
    def refuses(self) -> bool:
        shapes = [*self.upstreams.values(), *([self.upstream] if self.upstream is not None else [])]
        return any(shape.refuses for shape in shapes)

    @property
    def compares(self) -> bool:
        """Calls to an upstream that refuses some: the SDK alone could make them, too."""
        return self.refuses and all(load.calls and not load.come_back for load in self.loads)

    def cost(self, span_s: float) -> float:
        """What playing it costs, in items: a worker looks around every second, whether anything happens or not."""
        return self.count + (span_s if self.has_jobs else 0.0)

    def __post_init__(self) -> None:
        if not self.loads:
            raise ValueError("load must have at least one entry")
        if self.count > MOST_ITEMS:
            raise ValueError(f"a plan takes at most {MOST_ITEMS:,} items, not {self.count:,}")

    def cut(self, share: float) -> "Scenario":
        """The same question for the first part of the load, all of it shortened alike."""
        return msgspec.structs.replace(self, load=[load.cut(share) for load in self.loads])


def read_scenario(tree: Any) -> Scenario:
    """A scenario from plain data, as a YAML file or the command line's options have it."""
    try:
        return msgspec.convert(tree, Scenario)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        place = where.strip("`.")
        raise SettingsError(f"the scenario: {place + ': ' if place else ''}{what}") from None


def read_latency(text: float | str, first_token_s: float, tokens_out: int) -> Latency:
    """What a description of a latency means for answers of so many tokens."""
    words = str(text).strip()
    if speed := _SPEED.fullmatch(words):
        return Latency(first_token_s + tokens_out / _above_0(float(speed[1]), words))
    median, slash, tail = words.partition("/")
    median_s = read_seconds(median)
    if not slash:
        return Latency(median_s)
    p99_s = read_seconds(tail)
    if p99_s < _above_0(median_s, words):
        raise ValueError(f"a latency is written as median/p99, the smaller first, not {words!r:.60}")
    return Latency(median_s, math.log(p99_s / median_s) / _P99)


def read_seconds(text: str) -> float:
    """`5`, `2.5s`, `800ms`, `15min` or `2h`, in seconds."""
    found = _SECONDS.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r:.60} is no length of time: write 5, 2.5s, 800ms, 15min or 2h")
    return float(found[1]) * _UNIT_S[found[2]]


def _above_0(number: float, words: str) -> float:
    if not number > 0:
        raise ValueError(f"a latency must be more than 0, not {words!r:.60}")
    return number
