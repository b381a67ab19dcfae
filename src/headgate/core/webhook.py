"""What is told to whom when a job ends or an alert changes: events, payloads, and the jobs that deliver them.

How a message is signed and what an answer to it means is in `webhook_wire`.
"""

import enum
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from headgate.core.job import Ended, JobState, NewJob
from headgate.core.problems import Review
from headgate.core.webhook_wire import SCHEDULE, secret_mistake

TASK: Final = "headgate.webhook"
MOST_RESULT_BYTES: Final = 16 * 1024
LONGEST_URL_CHARS: Final = 2000
GRACE_S: Final = 30.0
"""What an attempt may take besides the request itself."""
DELIVERY_EXPIRES_S: Final = 7 * 86_400.0
"""Well past the last attempt, which may come 83 hours after the first."""
_URL: Final = re.compile(r"https?://[^\s/?#@\\]+(?:[/?#][^\s\\]*)?", re.IGNORECASE)
_PLACE: Final = re.compile(
    r"https?://(?:\[[0-9a-f:.]+\]|[^/?#:\[\]]+)(?::(?P<port>[0-9]{1,5}))?(?=[/?#]|\Z)", re.IGNORECASE
)
MOST_PORTS: Final = 65_535


class WebhookEvent(enum.StrEnum):
    """What a message is about: its `type`."""

    JOB_COMPLETED = "job.completed"
    JOB_DEAD_LETTER = "job.dead_letter"
    ALERT_FIRED = "alert.fired"
    ALERT_CLEARED = "alert.cleared"

    @property
    def topic(self) -> str:
        """Its name in the settings' list of events."""
        return _TOPICS[self]


_TOPICS: Final[Mapping[WebhookEvent, str]] = {
    WebhookEvent.JOB_COMPLETED: "completed",
    WebhookEvent.JOB_DEAD_LETTER: "dead_letter",
    WebhookEvent.ALERT_FIRED: "alert",
    WebhookEvent.ALERT_CLEARED: "alert",
}
TOPICS: Final = tuple(dict.fromkeys(_TOPICS.values()))
_BY_STATE: Final[Mapping[JobState, WebhookEvent]] = {
    JobState.COMPLETED: WebhookEvent.JOB_COMPLETED,
    JobState.DEAD_LETTER: WebhookEvent.JOB_DEAD_LETTER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRules:
    """What an operator can decide about webhooks. Of what leads to a receiver or proves us, nothing prints."""

    url: str | None = field(default=None, repr=False)
    """Where everybody's events go, besides a job's own address."""
    events: tuple[str, ...] = TOPICS
    secret: str | None = field(default=None, repr=False)
    """Signs what goes to `url`. All else is signed with its tenant's own."""
    allow_private: bool = False
    timeout_s: float = 15.0

    def __post_init__(self) -> None:
        review = Review()
        if self.url is not None and (mistake := url_mistake(self.url)):
            review.add("url", mistake)
        for index, event in enumerate(self.events):
            if event not in TOPICS:
                review.add(f"events[{index}]", f"must be one of {', '.join(TOPICS)}, not {event!r:.60}")
        if self.secret is not None and (mistake := secret_mistake(self.secret)):
            review.add("secret", mistake)
        review.number("timeout_s", self.timeout_s, above=0, most=60)
        review.refuse()


def url_mistake(url: str) -> str | None:
    """Why this cannot be an operator's URL; where it leads is the operator's business."""
    if len(url) > LONGEST_URL_CHARS:
        return f"must have at most {LONGEST_URL_CHARS:,} characters"
    if not _URL.fullmatch(url):
        return "must be a URL that begins with http:// or https:// and holds no user name, password or space"
    place = _PLACE.match(url)
    if place is None or not 1 <= int(place["port"] or 443) <= MOST_PORTS:
        return "must name a host, and no port or one from 1 to 65535"
    return None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a delivery."""

    id: str
    """`webhook-id`: the same over all attempts and redeliveries."""
    payload: msgspec.Raw
    url: str | None = None
    """A job's own address; None: the settings', which tenants are not shown."""
    alert: bool = False
    """It goes to the settings' address for alerts, where there is one."""


def deliveries(ended: Ended, rules: WebhookRules) -> tuple[NewJob, ...]:
    """What the end of a job brings. The same end gives the same jobs, ids included, however often it is asked."""
    event = _BY_STATE.get(ended.state)
    if event is None or not (addresses := _addresses(event, ended.webhook, rules)):
        return ()
    payload = encode_payload(event, ended.finished_at, _job_data(ended))
    message_id = f"msg_{ended.id.removeprefix('job_')}_{ended.generation}_{ended.revivals}"
    messages = [Message(id=message_id, payload=payload, url=url) for url in addresses]
    return tuple(_delivery(message, event, ended, rules) for message in messages)


def _addresses(event: WebhookEvent, own: str | None, rules: WebhookRules) -> list[str | None]:
    """The settings' (None), then the job's own; where both are the same, it is told once."""
    addresses: list[str | None] = []
    if rules.url is not None and event.topic in rules.events:
        addresses.append(None)
    if own is not None and not (addresses and own == rules.url):
        addresses.append(own)
    return addresses


def _delivery(message: Message, event: WebhookEvent, ended: Ended, rules: WebhookRules) -> NewJob:
    now = ended.finished_at
    name = hashlib.sha256(f"{message.id} {message.url or ''}".encode()).hexdigest()[:20]
    return NewJob(
        id=f"job_{int(now * 1000):012x}{name}",
        task=TASK,
        input=msgspec.json.encode(message),
        run_at=now,
        expires_at=now + DELIVERY_EXPIRES_S,
        tenant=ended.tenant,
        max_attempts=SCHEDULE.max_attempts,
        timeout_s=rules.timeout_s + GRACE_S,
        # Three days of attempts were enough: what is used up waits for a person.
        revivable=False,
        metadata=msgspec.json.encode(metadata_of(message, event, ended.id)),
    )


def metadata_of(message: Message, event: WebhookEvent, subject: str) -> dict[str, str]:
    """What lists show of a delivery: `subject` is the job or the alert it tells of."""
    return {"event": event, "subject": subject, "webhook_id": message.id}


def encode_payload(event: WebhookEvent, at: float, data: Mapping[str, Any]) -> msgspec.Raw:
    """The body as it is sent, byte by byte, at every attempt."""
    told = {"type": event, "timestamp": datetime.fromtimestamp(at, UTC), "data": data}
    return msgspec.Raw(msgspec.json.encode(told))


def _job_data(ended: Ended) -> dict[str, Any]:
    large = ended.result is not None and len(ended.result) > MOST_RESULT_BYTES
    result = None if ended.result is None or large else msgspec.Raw(ended.result)
    return {
        "id": ended.id,
        "task": ended.task,
        "tenant": ended.tenant,
        "state": ended.state,
        "model": ended.model or None,
        "attempts": ended.attempts,
        "reason": ended.reason,
        "error": ended.error,
        "error_class": ended.error_class,
        "metadata": None if ended.metadata is None else msgspec.Raw(ended.metadata),
        "finished_at": datetime.fromtimestamp(ended.finished_at, UTC),
        **({"result_omitted": True} if large else {"result": result}),
    }
