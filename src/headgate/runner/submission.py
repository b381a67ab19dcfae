"""From what a caller submits to a job that can be stored: every mistake is found here, before anything is."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from headgate.core.call import check_text, read_lane
from headgate.core.errors import InvalidRequest, NotAllowed, UnknownModel
from headgate.core.idempotency import KeyClaim
from headgate.core.job import Edit, Job, NewJob
from headgate.core.job_rules import JobRules
from headgate.core.record import RecordWrite
from headgate.machine.context import ACCESS_KEY
from headgate.runner.payloads import encode
from headgate.runner.tasks import Task, TaskTable

ENDPOINT: Final = "POST /v1/jobs"
MOST_AT_ONCE: Final = 1000
LONGEST_WEBHOOK_CHARS: Final = 2000
MOST_METADATA_BYTES: Final = 16 * 1024
LONGEST_WAIT_S: Final = 366 * 86_400.0
FIFO_STEP_S: Final = 1e-6
"""Jobs of one submission stand in line in their order: each is due this much after the one before."""


class Submission(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What may be said about a job when it is submitted. Everything but the task has a default.

    Defaults are left out of its JSON, so that fingerprints survive a version that adds a field.
    """

    task: str
    input: Any = None
    model: str | None = None
    lane: str = "batch"
    priority: int = 5
    max_attempts: int | None = None
    run_at: datetime | float | None = None
    expires_after_s: float | None = None
    timeout_s: float | None = None
    dedup_key: str | None = None
    hold: bool = True
    webhook: str | None = None
    metadata: dict[str, Any] | None = None


def read_submission(index: int, given: Submission | Mapping[str, Any]) -> Submission:
    if isinstance(given, Submission):
        return given
    try:
        return msgspec.convert(dict(given), Submission)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise InvalidRequest(f"jobs[{index}]: {error!s:.500}", param=f"jobs[{index}]") from error


@contextlib.contextmanager
def at_index(index: int) -> Iterator[None]:
    """An error about one job of a list says which one."""
    try:
        yield
    except (InvalidRequest, NotAllowed) as error:
        error.args = (f"jobs[{index}]: {error}",)
        if isinstance(error, InvalidRequest):
            error.param = ".".join(filter(None, (f"jobs[{index}]", error.param)))
        raise


class Intake:
    """Checks submissions and makes jobs of them."""

    def __init__(
        self,
        tasks: TaskTable,
        *,
        rules: JobRules,
        check_model: Callable[[str], None],
        check_webhook: Callable[[str], None],
        new_id: Callable[[], str],
    ) -> None:
        self._tasks = tasks
        self._rules = rules
        self._check_model = check_model
        self._check_webhook = check_webhook
        self._new_id = new_id

    def job(
        self,
        asked: Submission,
        *,
        tenant: str,
        now: float,
        position: int = 0,
        key: KeyClaim | None = None,
        records: Sequence[RecordWrite] = (),
        batch_id: str | None = None,
        revivable: bool = True,
        inside: bool = False,
    ) -> NewJob:
        """A job ready to be stored, or an `InvalidRequest` that names the field. `inside`: headgate itself submits it."""
        check_text("task", asked.task)
        check_text("tenant", tenant)
        task = self._tasks.find(asked.task, inside=inside)
        payload = encode(asked.input, what="the input")
        task.read(payload)
        run_at = _run_at(asked.run_at, now) + position * FIFO_STEP_S
        expires_after_s = _number("expires_after_s", asked.expires_after_s, self._rules.expires_after_s)
        job_id = f"job_{int(now * 1000):012x}{self._new_id()[:20]}"
        return NewJob(
            id=job_id,
            task=task.name,
            input=payload,
            run_at=run_at,
            expires_at=run_at + expires_after_s,
            tenant=tenant,
            model=self._model(asked, task),
            lane=read_lane(asked.lane),
            priority=_whole("priority", asked.priority, least=0, most=9),
            max_attempts=self._max_attempts(asked, task),
            timeout_s=_number("timeout_s", asked.timeout_s, task.timeout_s or self._rules.timeout_s),
            dedup_key=_dedup_key(asked.dedup_key),
            batch_id=batch_id,
            hold=_flag("hold", asked.hold),
            revivable=revivable,
            webhook=self._webhook(asked.webhook),
            metadata=_metadata(asked.metadata),
            access_key=ACCESS_KEY.get(),
            key=key,
            records=tuple(_joined(record, job_id) for record in records),
        )

    def model_named(self, asked: Submission) -> str:
        """The model that a submission is for, whether there is one of that name or not; empty: none."""
        check_text("task", asked.task)
        task = self._tasks.find(asked.task)
        named: object = asked.model or task.model
        if named is None and task.model_from_input:
            named = _in_input(asked.input)
        return named if isinstance(named, str) else ""

    def model_anew(self, job: Job, given: object) -> str | None:
        """The model that another input moves a job to, whether there is one of that name or not; None: it stays."""
        task = self._tasks.find(job.task)
        named = _in_input(given)
        if task.model is not None or not task.model_from_input or named == _in_input(job.input):
            return None
        return named if isinstance(named, str) and named else None

    def edit(self, job: Job, given: object) -> Edit:
        """Another input for a job, checked as that of a submission."""
        task = self._tasks.find(job.task)
        payload = encode(given, what="the input")
        task.read(payload)
        moves = self.model_anew(job, given) is not None
        return Edit(payload, self._model_in(given, task) if moves else None)

    def _model(self, asked: Submission, task: Task[Any, Any]) -> str:
        named = asked.model or task.model
        if named is None and task.model_from_input:
            return self._model_in(asked.input, task)
        if not isinstance(named, str) or not named:
            return ""
        check_text("model", named)
        self._check_model(named)
        return named

    def _model_in(self, given: object, task: Task[Any, Any]) -> str:
        named = _in_input(given)
        if not isinstance(named, str) or not named:
            if task.needs_model:
                raise InvalidRequest(
                    f"{task.name} needs a model: name it in the body, or as submit(model=…)", param="model"
                )
            return ""
        check_text("model", named)
        try:
            self._check_model(named)
        except UnknownModel as error:
            if not task.needs_model:
                hint = f"if the input's `model` means something else, say @task({task.name!r}, model=None)"
                error.args = (f"{error}; {hint}",)
            raise
        return named

    def _webhook(self, asked: object) -> str | None:
        url = _webhook(asked)
        if url is not None:
            self._check_webhook(url)
        return url

    def _max_attempts(self, asked: Submission, task: Task[Any, Any]) -> int:
        default = (task.retry or self._rules.retry).max_attempts
        most = default if asked.max_attempts is None else asked.max_attempts
        return _whole("max_attempts", most, least=1, most=100)


def _in_input(given: object) -> object:
    return given.get("model") if isinstance(given, dict) else getattr(given, "model", None)


def _joined(record: RecordWrite, job_id: str) -> RecordWrite:
    return record if record.job_id is not None else msgspec.structs.replace(record, job_id=job_id)


def _run_at(asked: datetime | float | None, now: float) -> float:
    if asked is None:
        return now
    if isinstance(asked, datetime):
        if asked.tzinfo is None:
            raise InvalidRequest("run_at needs a time zone: 2026-01-31T12:00:00Z", param="run_at")
        try:
            asked = asked.astimezone(UTC).timestamp()
        except OverflowError:  # At the ends of the calendar another zone's year does not exist.
            raise InvalidRequest("run_at is too near to an end of the calendar", param="run_at") from None
    if type(asked) not in {int, float} or not math.isfinite(asked):
        raise InvalidRequest(f"run_at must be a date with its time zone, not {asked!r}", param="run_at")
    if asked > now + LONGEST_WAIT_S:
        raise InvalidRequest("run_at must be within a year from now", param="run_at")
    return max(float(asked), now)


def _number(name: str, value: object, default: float) -> float:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LONGEST_WAIT_S:
        raise InvalidRequest(f"{name} must be a number of seconds above 0 and within a year", param=name)
    return float(value)


def _whole(name: str, value: object, *, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidRequest(
            f"{name} must be a whole number from {least} to {most}, not {value!r}", param=name
        )
    return value


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be true or false, not {value!r}", param=name)
    return value


def _dedup_key(value: object) -> str | None:
    if value is not None:
        check_text("dedup_key", value)
    return value if isinstance(value, str) else None


def _webhook(value: object) -> str | None:
    if value is None:
        return None
    told = value if isinstance(value, str) and value.isprintable() else ""
    if not told[:8].lower().startswith(("http://", "https://")) or len(told) > LONGEST_WEBHOOK_CHARS:
        wanted = f"an http:// or https:// address of at most {LONGEST_WEBHOOK_CHARS:,} characters"
        raise InvalidRequest(f"webhook must be {wanted}, not {value!r:.60}", param="webhook")
    return told


def _metadata(value: object) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InvalidRequest("metadata must be an object", param="metadata")
    encoded = encode(value, what="metadata")
    if len(encoded) > MOST_METADATA_BYTES:
        raise InvalidRequest(f"metadata must not exceed {MOST_METADATA_BYTES:,} bytes", param="metadata")
    return encoded
