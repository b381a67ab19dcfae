"""A job of the reference: what is known of it, and how it is shown."""

import dataclasses
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from headgate.core.job import Attempt, Claim, Ended, Entry, Job, JobState, NewJob, due

WAITING = ("scheduled", "ready", "suspect")
LIVE = (*WAITING, "running")


@dataclass
class Row:
    job: NewJob
    seq: int
    created_at: float
    state: str
    run_at: float
    due: float
    expires_at: float
    input: bytes
    lease: int = 0
    attempts: int = 0
    generation: int = 1
    crashes: int = 0
    deferrals: int = 0
    silences: int = 0
    alone: bool = False
    revivals: int = 0
    owner: str | None = None
    started_at: float | None = None
    finished_at: float | None = None
    cancel_at: float | None = None
    revive_at: float | None = None
    reason: str | None = None
    error: str | None = None
    error_class: str | None = None
    progress: bytes | None = None
    result: bytes | None = None
    history: list[Entry] = field(default_factory=list)
    steps: dict[str, bytes] = field(default_factory=dict)

    def copy(self) -> "Row":
        return dataclasses.replace(self, history=[*self.history], steps={**self.steps})

    def queue(self, now: float, expires_at: float) -> None:
        """Back in line as of now."""
        self.state, self.attempts, self.run_at, self.expires_at = "ready", 0, now, expires_at
        self.due = due(now, self.job.priority, self.job.lane)
        self.finished_at = self.revive_at = self.reason = None

    def end(self, state: str, now: float, reason: str, entry: Entry) -> None:
        self.state, self.finished_at, self.reason = state, now, reason
        self.history.append(entry)

    def claim(self) -> Claim:
        """The job as its worker gets it."""
        return Claim(**self._told(Claim.__struct_fields__))

    def ended(self) -> Ended:
        """The job as those hear of it who have something to add to its end."""
        return Ended(**{**self._told(Ended.__struct_fields__), "state": JobState(self.state)})

    def _told(self, names: tuple[str, ...]) -> dict[str, Any]:
        return {
            name: getattr(self, name) if hasattr(self, name) else getattr(self.job, name) for name in names
        }

    def seen(self) -> Job:
        """The job as `find` shows it."""
        told: dict[str, Any] = {}
        for name in Job.__struct_fields__:
            value = getattr(self, name) if hasattr(self, name) else getattr(self.job, name, None)
            told[name] = _moment(value) if name.endswith("_at") else value
        told["state"] = JobState.PENDING if self.state in WAITING else JobState(self.state)
        told["model"] = self.job.model or None
        for name in ("input", "result", "metadata", "progress"):
            told[name] = None if told[name] is None else msgspec.json.decode(told[name])
        told["history"] = tuple(_told(entry) for entry in self.history)
        return Job(**told)


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _told(entry: Entry) -> Attempt:
    told: dict[str, Any] = {name: getattr(entry, name) for name in Entry.__struct_fields__}
    told["at"], told["started_at"] = _moment(entry.at), _moment(entry.started_at)
    if isinstance(entry.input, msgspec.Raw):
        told["input"] = msgspec.json.decode(entry.input)
    return Attempt(**told)
