"""The weathers by name: who calls how often, and which upstreams they meet."""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple

from weathers.kinds import (
    THROTTLED,
    Bucket,
    Calm,
    Cold,
    Crowd,
    Queue,
    Quota,
    Slower,
    Spells,
    Tail,
    Windows,
    Zeros,
)

PATIENCE_S: Final = 60.0
"""An answer counts within this time of its call."""


class Phase(NamedTuple):
    """So many calls with exponential gaps, and a pause after them."""

    per_s: float
    calls: int
    pause_s: float = 0.0


class Arrival(NamedTuple):
    """When a call is due, and what it costs in units of an average call."""

    at: float
    size: float


USUAL_LOAD: Final = Phase(15.0, 300)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """One row of the table."""

    name: str
    title: str
    upstreams: Sequence[Callable[..., Calm]]
    """In order. The SDK alone knows only the first."""
    load: Sequence[Phase] = (USUAL_LOAD,)
    sizes: float = 0.0
    """Sigma of the sizes' logarithm; 0: all calls cost the same."""
    slots: Sequence[int | None] = (None,)
    """Per upstream; None: the gateway's default."""
    usual: bool = True
    """Part of a run that names no weathers."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the gateway's model, where they are not the defaults."""
    quota_per_s: float = math.inf
    """What it takes in the long run."""
    most_calls: float = 1.02
    """Asked for: calls at the provider per answer, ÷ the SDK alone."""
    most_per_answer: float = 1.1
    """Asked for under a quota: calls at the provider per answer."""

    @property
    def over(self) -> bool:
        """More is offered than its quota: first come, first served costs the median what it saves the slowest."""
        return self.load[0].per_s > self.quota_per_s

    @property
    def wastes_at_most(self) -> float:
        """Calls per answer that are asked for: only a quota that is too small to be learned may cost more."""
        return self.most_per_answer if 4 <= self.quota_per_s < math.inf else math.inf

    @property
    def calls(self) -> int:
        return sum(phase.calls for phase in self.load)

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        chance = random.Random(f"{seed} arrivals")
        at = 0.0
        for phase in self.load:
            for _ in range(phase.calls):
                at += chance.expovariate(phase.per_s)
                size = chance.lognormvariate(-(self.sizes**2) / 2, self.sizes) if self.sizes else 1.0
                yield Arrival(at, size)
            at += phase.pause_s

    def sky(self, seed: int) -> list[Calm]:
        """Its upstreams at the beginning of a run."""
        return [make(seed=seed + 1000 * place) for place, make in enumerate(self.upstreams)]

    def shortened(self, calls: int) -> "Weather":
        """With about so many calls, for a trial run."""
        share = calls / self.calls
        if share >= 1:
            return self
        return replace(
            self, load=[phase._replace(calls=max(1, round(share * phase.calls))) for phase in self.load]
        )


def _one(
    name: str,
    title: str,
    kind: Callable[..., Calm],
    *phases: Phase,
    slots: int | None = None,
    usual: bool = True,
    sizes: float = 0.0,
    quota_per_s: float = math.inf,
    most_calls: float = 1.02,
    most_per_answer: float = 1.1,
    settings: Mapping[str, Any] | None = None,
) -> Weather:
    """A weather of one upstream."""
    return Weather(
        name=name,
        title=title,
        upstreams=[kind],
        load=phases or (USUAL_LOAD,),
        slots=[slots],
        usual=usual,
        sizes=sizes,
        quota_per_s=quota_per_s,
        most_calls=most_calls,
        most_per_answer=most_per_answer,
        settings=settings or {},
    )


_more = partial(_one, usual=False)
_STORM: Final = partial(Spells, status=THROTTLED, hint_s=2.0, times=((0.0, 999.0),))

_LISTED: Final = (
    _one("chance-10", "one call in ten gets 429, Retry-After 1", partial(Calm, throttled=0.1), slots=16),
    _one(
        "chance-10-errors-5",
        "the same, and one in twenty a 500",
        partial(Calm, throttled=0.1, failing=0.05),
        slots=16,
    ),
    _one("quota-20", "a quota of 20 starts a second", Quota, slots=16, quota_per_s=20),
    _one("windows", "84 starts per 6 s, then 429 until the window ends", Windows, slots=16, quota_per_s=14),
    _one("outage-4", "down for 4 s", Spells, slots=16),
    _one("slow-tail", "one call in fifty takes 8 s", Tail, slots=16),
    _one(
        "slow-tail-hedged",
        "the same, with `hedge: {after: p95, share: 0.05}`",
        Tail,
        slots=16,
        settings={"hedge": {"after": "p95", "share": 0.05}},
        most_calls=1.06,
    ),
    Weather(
        name="throttled-first",
        title="a fast upstream throttled for 1 s (Retry-After 10), a slow one (2 slots, 3.5 s) behind it",
        upstreams=[
            partial(Spells, status=THROTTLED, hint_s=10.0, times=((3.0, 4.0),)),
            partial(Queue, places=2, answer_s=3.5, spread=0.1),
        ],
        slots=[16, 2],
    ),
    _one("in-flight-8", "429 above 8 calls in flight", Crowd, slots=16),
    _one("overload", "40/s for 10 s on a quota of 20/s", Quota, Phase(40.0, 400), slots=16, quota_per_s=20),
    _one(
        "chance-30-no-hint",
        "429 for 30 % of calls, no Retry-After",
        partial(Calm, throttled=0.3, hint_s=None),
    ),
    _one("chance-50", "429 for half of the calls", partial(Calm, throttled=0.5)),
    _one("chance-20-at-1", "429 for 20 % of calls, 1 call/s", partial(Calm, throttled=0.2), Phase(1.0, 60)),
    _one(
        "chance-20-at-100",
        "429 for 20 % of calls, 100 calls/s",
        partial(Calm, throttled=0.2),
        Phase(100.0, 1500),
    ),
    _one("errors-50", "500 for half of the calls", partial(Calm, failing=0.5)),
    _one(
        "retry-after-20",
        "429 with Retry-After 20 for 10 s",
        partial(Spells, status=THROTTLED, hint_s=20.0, times=((3.0, 13.0),)),
    ),
    _one(
        "slow-refusals",
        "429 for 10 s, each refusal takes 0.5 s",
        partial(Spells, status=THROTTLED, hint_s=2.0, times=((3.0, 13.0),), refusal_s=0.5),
    ),
    _one(
        "quota-halves",
        "a quota of 20/s that halves after 8 s",
        partial(Quota, change_at=8.0, changed=10.0),
        quota_per_s=10,
    ),
    _one(
        "slow-start",
        "a quota of 4/s that grows by 2/s each second",
        partial(Quota, rate=4.0, grows_per_s=2.0),
        quota_per_s=4,
    ),
    _one(
        "quota-and-chance",
        "40/s on a quota of 20/s, 10 % random 429 on top",
        partial(Quota, throttled=0.1),
        Phase(40.0, 600),
        quota_per_s=20,
        most_per_answer=1.1 / 0.9,
    ),
    _one(
        "rival",
        "a bucket of 24/s with a rival that takes 5 to 25/s",
        partial(Bucket, rate=24.0, depth=24.0, rival_per_s=15.0, rival_swing=10.0),
        quota_per_s=9,
        most_calls=1.35,
        most_per_answer=math.inf,
    ),
    _one(
        "tokens",
        "a token quota at 1.5 × its load",
        partial(Bucket, rate=10.0, depth=60.0, exact=True),
        Phase(15.0, 450),
        sizes=1.2,
        quota_per_s=10,
        most_calls=1.35,
        most_per_answer=math.inf,
    ),
    _one("bucket", "a bucket of 100, 20/s, at twice its load", Bucket, Phase(40.0, 600), quota_per_s=20),
    _one(
        "bucket-headers",
        "the same with rate-limit headers",
        partial(Bucket, tells=True),
        Phase(40.0, 600),
        quota_per_s=20,
    ),
    _one("cuts", "one answer in ten is cut in the middle", partial(Calm, cut=0.1)),
    _one("doubling", "answers take twice as long every 10 s", Slower, Phase(15.0, 450)),
    _one(
        "surge",
        "150/s for 10 s on a quota of 20/s",
        Quota,
        Phase(15.0, 75),
        Phase(150.0, 1500),
        Phase(15.0, 75),
        quota_per_s=20,
    ),
    Weather(
        name="degrading",
        title="two upstreams; after 5 s the first takes 8 × as long and fails 30 %",
        upstreams=[partial(Slower, every_s=5.0, factor=8.0, fails=0.3), Calm],
        slots=[None, None],
    ),
    _one("cold", "a cold model: 20 s until its first answer", Cold),
    _one("burst", "500 calls at once on a quota of 20/s", Quota, Phase(1000.0, 500), quota_per_s=20),
    # The others are for virtual time, and for those who name them.
    _more("chance-30", "429 for 30 % of calls", partial(Calm, throttled=0.3)),
    _more(
        "chance-10-no-hint",
        "429 for 10 % of calls, no Retry-After",
        partial(Calm, throttled=0.1, hint_s=None),
    ),
    _more("quota-20-full", "20/s on a quota of 20/s", Quota, Phase(20.0, 600), quota_per_s=20),
    _more("quota-2", "4/s on a quota of 2/s", partial(Quota, rate=2.0), Phase(4.0, 300), quota_per_s=2),
    _more(
        "quota-100",
        "200/s on a quota of 100/s",
        partial(Quota, rate=100.0),
        Phase(200.0, 4000),
        slots=128,
        quota_per_s=100,
    ),
    _more(
        "quota-doubles",
        "20/s on a quota of 10/s that doubles after 30 s",
        partial(Quota, rate=10.0, change_at=30.0),
        Phase(20.0, 1200),
        quota_per_s=10,
    ),
    _more("windows-double", "28/s on 84 starts per 6 s", Windows, Phase(28.0, 840), quota_per_s=14),
    _more(
        "windows-10",
        "30/s on 150 starts per 10 s",
        partial(Windows, size=150, span_s=10.0),
        Phase(30.0, 900),
        quota_per_s=15,
    ),
    _more(
        "minute-840",
        "840 starts a minute, hint 1 s",
        partial(Windows, size=840, span_s=60.0, exact=False),
        Phase(15.0, 1800),
        quota_per_s=14,
    ),
    _more(
        "minute-600",
        "600 starts a minute, hint 1 s",
        partial(Windows, size=600, span_s=60.0, exact=False),
        Phase(15.0, 1800),
        quota_per_s=10,
    ),
    _more(
        "bucket-1",
        "1.5/s on a bucket of 10, 1/s",
        partial(Bucket, rate=1.0, depth=10.0),
        Phase(1.5, 180),
        quota_per_s=1,
    ),
    _more(
        "tokens-90",
        "a token quota at 0.9 × its load",
        partial(Bucket, rate=16.67, depth=60.0, exact=True),
        Phase(15.0, 900),
        sizes=1.2,
    ),
    _more("outage-30", "down for 30 s", partial(Spells, times=((10.0, 40.0),)), Phase(15.0, 900)),
    _more(
        "flapping",
        "down for 2 of every 10 s",
        partial(Spells, times=((5.0, 7.0),), every_s=10.0),
        Phase(15.0, 750),
    ),
    _more("slow-over-8", "slower above 8 calls in flight", partial(Crowd, slows=True)),
    _more("burst-16-places", "500 calls at once on an upstream with 16 places", Queue, Phase(1000.0, 500)),
    _more(
        "volleys",
        "60 calls at once every 4 s, 429 for 20 %",
        partial(Calm, throttled=0.2, hint_s=2.0),
        *[Phase(1000.0, 60, 4.0)] * 8,
    ),
    _more(
        "slow-answers",
        "answers of 8 s, 4/s on a quota of 3/s",
        partial(Quota, rate=3.0, answer_s=8.0),
        Phase(4.0, 300),
        quota_per_s=3,
    ),
    _more(
        "blips",
        "500 for 1 s of every 10 s, 1 call/s",
        partial(Spells, times=((0.0, 1.0),), every_s=10.0),
        Phase(1.0, 300),
    ),
    _more("cold-40", "a cold model: 40 s until its first answer", partial(Cold, load_s=40.0)),
    _more(
        "slow-answers-504",
        "answers of 40 s; 504 for 3 s of every minute",
        partial(Spells, status=504, times=((3.0, 6.0),), every_s=60.0, answer_s=40.0, spread=0.1),
        Phase(1.5, 300),
    ),
    _more(
        "retry-after-100",
        "429 with Retry-After 100 for 100 s",
        partial(Spells, status=THROTTLED, hint_s=100.0, times=((10.0, 110.0),)),
        Phase(15.0, 4500),
    ),
    _more("zeros", "no limit, but headers that say remaining: 0", Zeros),
    _more(
        "quota-goes",
        "40/s on a quota of 5/s that ends after 20 s",
        partial(Quota, rate=5.0, change_at=20.0, changed=1000.0),
        Phase(40.0, 2400),
        quota_per_s=5,
    ),
    _more("storm", "429 for 10 min, Retry-After 2", _STORM, Phase(15.0, 9000)),
    _more(
        "storm-slow-refusals",
        "the same, each refusal takes 0.5 s",
        partial(_STORM, refusal_s=0.5),
        Phase(15.0, 9000),
    ),
)

WEATHERS: Final = {weather.name: weather for weather in _LISTED}
OTHER_KINDS: Final = ("chance-10", "quota-20", "outage-4", "in-flight-8", "cuts")
"""Run streamed and as jobs, too."""
COMPARED: Final = ("chance-10", "quota-20", "windows", "outage-4", "in-flight-8")
"""Where the model of the SDK is compared with the real one."""
