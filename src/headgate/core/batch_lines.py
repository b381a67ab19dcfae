"""The lines of a batch: what makes one bad, and how what came of it is written down. Bytes in, values and bytes out."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import msgspec

from headgate.core.batch import BatchError
from headgate.core.batch_order import JOB_PREFIX, MOST_LINES
from headgate.core.errors import InvalidRequest
from headgate.core.failures import FailureKind
from headgate.core.job import Job, JobState, Reason
from headgate.core.json_trouble import check_json

MOST_ERRORS: Final = 100
LONGEST_CUSTOM_ID_CHARS: Final = 512
LONGEST_LINE_BYTES: Final = 4 * 1024 * 1024
MOST_BLANK_LINES: Final = MOST_LINES
_NEEDED: Final[Mapping[str, type]] = {"custom_id": str, "method": str, "url": str, "body": dict}
_encode = msgspec.json.Encoder().encode


class Line(msgspec.Struct, frozen=True, gc=False):
    """One request. Its body is read by the task that runs it."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Body(msgspec.Struct, gc=False):
    """What a batch must know of a body."""

    model: Any = None


_decode = msgspec.json.Decoder(Line).decode
_decode_body = msgspec.json.Decoder(_Body).decode
_decode_any = msgspec.json.Decoder().decode


def read_line(data: bytes) -> Line:
    """A line that was checked before; msgspec's errors when it is none."""
    return _decode(data)


class LineChecks:
    """Looks at all lines of a file, one after the other, and remembers what is wrong with them.

    `read_body` raises `InvalidRequest` for a body that makes no sense. With `only`, other lines are passed over.
    """

    def __init__(
        self, *, endpoint: str, read_body: Callable[[bytes], Any], only: Collection[str] | None = None
    ) -> None:
        self.total = 0
        self.errors: list[BatchError] = []
        self._endpoint = endpoint
        self._read_body = read_body
        self._only = only
        self._seen: dict[str, int] = {}

    @property
    def hopeless(self) -> bool:
        """Enough is wrong: nobody reads more."""
        return len(self.errors) >= MOST_ERRORS

    def check(self, number: int, data: bytes) -> str | None:
        """The model that the line asks for; None when the line is bad, or not meant."""
        try:
            check_json(data, what="The line")
            line = _decode(data)
        except InvalidRequest as too_much:
            self.errors.append(BatchError(code="invalid_json_line", line=number, message=f"{too_much}."))
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self.errors.append(_malformed(number, data))
            return None
        if self._only is not None and line.custom_id not in self._only:
            return None
        self.total += 1
        error = self._find_fault(number, line) or self._find_twin(number, line)
        if error is None:
            model = self._model(number, line)
            if isinstance(model, str):
                return model
            error = model
        self.errors.append(error)
        return None

    def _find_fault(self, number: int, line: Line) -> BatchError | None:
        if not 0 < len(line.custom_id) <= LONGEST_CUSTOM_ID_CHARS:
            message = f"custom_id must have 1 to {LONGEST_CUSTOM_ID_CHARS} characters"
            return BatchError(code="invalid_custom_id", line=number, message=message, param="custom_id")
        if line.method != "POST":
            message = f"method must be POST, not {line.method!r:.40}"
            return BatchError(code="invalid_method", line=number, message=message, param="method")
        if line.url != self._endpoint:
            message = f"The URL {line.url[:100]!r} does not match the batch's endpoint, {self._endpoint}."
            return BatchError(code="url_mismatch", line=number, message=message, param="url")
        if not bytes(line.body).startswith(b"{"):
            return _of_wrong_type(number, "body")
        return None

    def _find_twin(self, number: int, line: Line) -> BatchError | None:
        first = self._seen.setdefault(line.custom_id, number)
        if first == number:
            return None
        message = f"custom_id {line.custom_id[:100]!r} stands on line {first} already."
        return BatchError(code="duplicate_custom_id", line=number, message=message, param="custom_id")

    def _model(self, number: int, line: Line) -> str | BatchError:
        try:
            self._read_body(bytes(line.body))
        except InvalidRequest as error:
            param = f"body.{error.param}" if error.param else "body"
            return BatchError(code="invalid_request", line=number, message=str(error), param=param)
        model = _decode_body(line.body).model
        if not isinstance(model, str) or not model:
            return _missing(number, "body.model")
        return model


def wrong_whole(total: int, blank: int) -> BatchError | None:
    """What is wrong with a file of so many lines to run and so many blank ones."""
    if blank > MOST_BLANK_LINES:
        return BatchError(
            code="too_many_tasks", message=f"The file has more than {MOST_BLANK_LINES:,} blank lines."
        )
    if total == 0:
        return BatchError(code="empty_file", message="The file has no lines to run.")
    if total > MOST_LINES:
        return BatchError(
            code="too_many_tasks", message=f"The file has more than {MOST_LINES:,} lines. Split it."
        )
    return None


def too_long(number: int) -> BatchError:
    message = f"This line is longer than {LONGEST_LINE_BYTES:,} bytes."
    return BatchError(code="line_too_long", line=number, message=message)


def _malformed(number: int, data: bytes) -> BatchError:
    """The careful look, for lines that did not pass the quick one."""
    not_json = BatchError(
        code="invalid_json_line", line=number, message="This line is not parseable as valid JSON."
    )
    try:
        value = _decode_any(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return not_json
    if not isinstance(value, dict):
        return BatchError(code="invalid_json_line", line=number, message="This line is not a JSON object.")
    for name, kind in _NEEDED.items():
        if name not in value:
            return _missing(number, name)
        if not isinstance(value[name], kind):
            return _of_wrong_type(number, name)
    return not_json


def _of_wrong_type(number: int, name: str) -> BatchError:
    wanted = "text" if _NEEDED[name] is str else "an object"
    return BatchError(code="invalid_type", line=number, message=f"{name} must be {wanted}.", param=name)


def _missing(number: int, name: str) -> BatchError:
    message = f"Missing required parameter: {name}."
    return BatchError(code="missing_required_parameter", line=number, message=message, param=name)


# ---- What came of a line --------------------------------------------------------------------------------

_STATUS: Final[Mapping[str, tuple[int, str, str]]] = {
    FailureKind.REJECTED: (400, "invalid_request_error", "invalid_request"),
    FailureKind.THROTTLED: (429, "rate_limit_error", "upstream_throttled"),
    FailureKind.INVALID_OUTPUT: (422, "invalid_request_error", "unprocessable"),
    FailureKind.TRANSIENT: (502, "server_error", "upstream_unavailable"),
    FailureKind.MISCONFIGURED: (502, "server_error", "upstream_misconfigured"),
}
"""By a failure's class: status, type and code, as direct calls are answered."""
_BROKEN: Final = (500, "server_error", "internal")
EXPIRED: Final = ("batch_expired", "This request could not be executed before the completion window expired.")
CANCELLED: Final = ("batch_cancelled", "The batch was cancelled before this request was executed.")
LINE_CANCELLED: Final = ("request_cancelled", "This request was cancelled.")


CLOCKS_APART_S: Final = 1.0
"""A line may have been stopped by a machine whose clock is this much behind that of whoever cancelled the batch."""


class Stop(msgspec.Struct, frozen=True, gc=False):
    """What ended a batch's lines that were not done: since when (epoch seconds), and what is said of them."""

    at: float
    why: tuple[str, str]

    def why_of(self, job: Job) -> tuple[str, str]:
        """One that was cancelled before was so by its own id."""
        at = job.finished_at
        earlier = at is not None and at.timestamp() < self.at - CLOCKS_APART_S
        return LINE_CANCELLED if earlier else self.why


class Written(msgspec.Struct, frozen=True, gc=False):
    """One line of the output file or of the error file."""

    data: bytes
    completed: bool = False
    expired: bool = False


def written(job: Job, custom_id: str, *, stop: Stop) -> Written:
    """What came of a line's job, once that has ended."""
    name = job.id.removeprefix(JOB_PREFIX)
    if job.state is JobState.COMPLETED:
        return Written(_answered(name, custom_id, 200, job.result), completed=True)
    if job.state is JobState.DEAD_LETTER and job.reason != Reason.EXPIRED:
        status, kind, code = _STATUS.get(job.error_class or "", _BROKEN)
        error = {"message": job.error or str(job.reason), "type": kind, "param": None, "code": code}
        return Written(_answered(name, custom_id, status, {"error": error}))
    return never_run(name, custom_id, EXPIRED if job.state is JobState.DEAD_LETTER else stop.why_of(job))


def never_run(name: str, custom_id: str, why: tuple[str, str]) -> Written:
    code, message = why
    told = {
        "id": f"batch_req_{name}",
        "custom_id": custom_id,
        "response": None,
        "error": {"code": code, "message": message},
    }
    return Written(_encode(told) + b"\n", expired=why is EXPIRED)


def _answered(name: str, custom_id: str, status: int, body: Any) -> bytes:
    response = {"status_code": status, "request_id": f"req_{name}", "body": body}
    told = {"id": f"batch_req_{name}", "custom_id": custom_id, "response": response, "error": None}
    return _encode(told) + b"\n"
