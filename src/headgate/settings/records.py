"""The settings as records: they compose the components' own records and add nothing but names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headgate.calls.routes import Balance, Gather
from headgate.core.alert_rules import AlertRules
from headgate.core.gate_rules import GateRules
from headgate.core.hedging import HedgeRules
from headgate.core.idempotency import IdempotencyRules
from headgate.core.job_rules import JobRules
from headgate.core.problems import Review
from headgate.core.retry import RetryPolicy
from headgate.core.timeouts import Timeouts
from headgate.core.webhook import WebhookRules
from headgate.settings.database import SQLITE, database_mistake
from headgate.settings.front import LISTEN, Address, Limits, listen_mistake, read_address

SIMULATED: Final = "simulated"
ALWAYS_THERE: Final = (SIMULATED, f"{SIMULATED}/*")
"""Models that need no settings: they lead to the simulated provider unless defined otherwise."""
LONGEST_NAME: Final = 200
LEAST_KEY_CHARS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSettings:
    """One provider behind one gate."""

    provider: str
    model: str | None = None
    """The provider's own name for the model; None: the provider's default, in a family the member's name."""
    gate: GateRules = field(default_factory=GateRules)
    spill: bool = False
    retry_budget: float | None = None
    """Retries may add at most this share of the calls; None: as many as the SDK alone would send."""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What belongs to the provider. It may hold keys and passwords, so it never prints."""

    def __post_init__(self) -> None:
        review = Review()
        _check_name(review, "provider", self.provider)
        if self.model is not None:
            _check_name(review, "model", self.model)
        review.number("retry_budget", self.retry_budget, most=100)
        review.refuse()


PATIENCE_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """What stands behind one public model name."""

    upstreams: tuple[UpstreamSettings, ...]
    retry: RetryPolicy = field(default_factory=RetryPolicy.sdk)
    timeouts: Timeouts = field(default_factory=Timeouts)
    balance: Balance = Balance.ORDERED
    gather: Gather | None = None
    stream_rescue: bool = False
    """A stream that breaks is begun anew at the next upstream, and goes on where it was when the texts agree."""
    patience_s: float = PATIENCE_S
    """An earlier upstream is preferred if its answer is expected at most so much later than another's."""
    wait: bool = True
    """Calls wait while the upstreams are closed; else they are refused at once."""
    hedge: HedgeRules | None = None
    """Calls slower than nearly all others get a second attempt."""

    def __post_init__(self) -> None:
        review = Review()
        if not self.upstreams:
            review.add("upstreams", "must have at least one entry")
        if self.gather is not None:
            check_gather(review, self.gather, under="gather.")
        review.number("patience_s", self.patience_s)
        review.refuse()


def simulated_models() -> dict[str, ModelSettings]:
    upstreams = (UpstreamSettings(provider=SIMULATED),)
    return {name: ModelSettings(upstreams=upstreams) for name in ALWAYS_THERE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything an operator can decide."""

    models: Mapping[str, ModelSettings] = field(default_factory=simulated_models)
    listen: str = LISTEN
    data_dir: Path = Path(".headgate")
    logs_dir: Path | None = None
    database: str = field(default=SQLITE, repr=False)
    """`sqlite`, or the URL of a Postgres. It may hold a password, so it never prints."""
    secret_key: str | None = field(default=None, repr=False)
    """Encrypts what the database keeps secret, the same on all nodes; None: a file in `data_dir` has one."""
    jobs: JobRules = field(default_factory=JobRules)
    idempotency: IdempotencyRules = field(default_factory=IdempotencyRules)
    webhooks: WebhookRules = field(default_factory=WebhookRules)
    alerts: AlertRules = field(default_factory=AlertRules)
    limits: Limits = field(default_factory=Limits)
    tracing: bool = False
    """Spans to a collector; which one, how many and under what name is said by the standard `OTEL_…` variables."""
    apps: Mapping[str, Any] = field(default_factory=dict)
    """The mounted applications by name, each with its options as a record of its own."""

    def __post_init__(self) -> None:
        review = Review()
        for name in self.models:
            if mistake := name_mistake(name):
                review.add(f"models.{name}", mistake)
        for field_name, path in (("data_dir", self.data_dir), ("logs_dir", self.logs_dir)):
            if path is not None and (mistake := path_mistake(str(path))):
                review.add(field_name, mistake)
        if mistake := database_mistake(self.database):
            review.add("database", mistake)
        if mistake := listen_mistake(self.listen):
            review.add("listen", mistake)
        if mistake := secret_key_mistake(self.secret_key):
            review.add("secret_key", mistake)
        review.refuse()

    @property
    def address(self) -> Address:
        return read_address(self.listen)

    @property
    def logs_path(self) -> Path:
        return self.data_dir / "logs" if self.logs_dir is None else self.logs_dir


def secret_key_mistake(key: str | None) -> str | None:
    """Why this is no secret key; it is never quoted."""
    if key is None or len(key.strip()) >= LEAST_KEY_CHARS:
        return None
    return f"must have at least {LEAST_KEY_CHARS} characters: `openssl rand -hex 32` makes one"


def check_gather(review: Review, gather: Gather, *, under: str = "") -> None:
    """What an operator may ask for; the gateway itself also gathers as many as a provider takes."""
    review.number(f"{under}size", gather.size, least=1, most=1000, whole=True)
    review.number(f"{under}wait_ms", gather.wait_ms, most=60_000)


def name_mistake(name: str) -> str | None:
    """Why this cannot be a model's name. A star makes a family: `name/*`."""
    if not 1 <= len(name) <= LONGEST_NAME:
        return f"a model's name must have 1 to {LONGEST_NAME} characters, not {len(name)}"
    if not name.isprintable():
        return "a model's name must be printable"
    if "*" in name and ("*" in name[:-1] or not name[:-2] or not name.endswith("/*")):
        return "a star may only end a family's name, after a slash: 'name/*'"
    return None


def path_mistake(path: str) -> str | None:
    if not path.strip() or "\0" in path:
        return "must be the path of a directory"
    if path.startswith("~"):
        return "must not start with ~: write the path out, or use ${HOME}"
    return None


def _check_name(review: Review, field_name: str, name: str) -> None:
    if not name.strip():
        review.add(field_name, "must not be empty")
    elif not name.isprintable():
        review.add(field_name, "must be printable")
