"""The rules of batches, as tables."""

import itertools

import pytest

from headgate.core.batch import (
    LEAST_LOOK_S,
    LONGEST_LOOK_S,
    Batch,
    BatchError,
    BatchOrder,
    BatchState,
    Checked,
    Closing,
    Standing,
    batch_id_of,
    begin,
    check_endpoint,
    check_metadata,
    created_at_of,
    ended,
    ends_at_of,
    failed,
    is_batch_id,
    job_id_of,
    next_look_s,
    under_way,
    window_s,
)
from headgate.core.errors import InvalidRequest

JOB_ID = f"job_{1_700_000_000_123:012x}0123456789abcdef"
BATCH_ID = batch_id_of(JOB_ID)
ORDER = BatchOrder(input_file_id="file-1", endpoint="/v1/embeddings", metadata={"a": "b"})
CHECKED = Checked(at=1_700_000_001.5, total=10, chunk_lines=5)
CLOSING = Closing(at=1_700_000_002.5, output_file_id="file-2", error_file_id="file-3")
V, P, F = BatchState.VALIDATING, BatchState.IN_PROGRESS, BatchState.FINALIZING
CANCELLING = BatchState.CANCELLING
LEGAL = {
    V: {P, CANCELLING, BatchState.FAILED},
    P: {F, CANCELLING},
    CANCELLING: {F, BatchState.FAILED},
    F: {BatchState.COMPLETED, BatchState.EXPIRED, BatchState.CANCELLED},
}


def _seen(checked: Checked | None, closing: Closing | None, cancelled_at: float | None) -> Batch:
    standing = Standing(checked=checked, closing=closing, cancelled_at=cancelled_at)
    return under_way(begin(BATCH_ID, ORDER), standing, {"completed": 3, "dead_letter": 1, "pending": 6})


@pytest.mark.parametrize(
    ("checked", "closing", "cancelled_at", "status"),
    [
        (None, None, None, V),
        (None, None, 1.0, CANCELLING),
        (CHECKED, None, None, P),
        (CHECKED, None, 1.0, CANCELLING),
        (CHECKED, CLOSING, None, F),
        # The mark came too late: the step that closes the batch says whether it was cancelled.
        (CHECKED, CLOSING, 1.0, F),
    ],
)
def test_how_a_batch_stands_follows_from_what_its_job_has_stored(
    checked: Checked | None, closing: Closing | None, cancelled_at: float | None, status: BatchState
) -> None:
    assert _seen(checked, closing, cancelled_at).status is status


def test_whatever_is_stored_next_leads_to_a_legal_state() -> None:
    """Steps and marks come one at a time, in this order; whoever polls must never see a batch go back."""
    for cancel_at in (None, 0, 1, 2):
        facts: list[tuple[Checked | None, Closing | None, float | None]] = [(None, None, None)]
        for number, (checked, closing) in enumerate(((None, None), (CHECKED, None), (CHECKED, CLOSING))):
            marked = 1.0 if cancel_at is not None and number >= cancel_at else None
            facts.append((checked, closing, marked))
        states = [_seen(*fact).status for fact in facts]
        for before, after in itertools.pairwise(states):
            assert after is before or after in LEGAL[before], states


def test_live_counts_are_those_of_the_lines() -> None:
    counts = _seen(CHECKED, None, None).request_counts
    assert (counts.total, counts.completed, counts.failed) == (10, 3, 1)


@pytest.mark.parametrize(
    ("cancelled_at", "any_expired", "status", "field"),
    [
        (None, False, BatchState.COMPLETED, "completed_at"),
        (None, True, BatchState.EXPIRED, "expired_at"),
        (5.0, False, BatchState.CANCELLED, "cancelled_at"),
        (5.0, True, BatchState.CANCELLED, "cancelled_at"),
    ],
)
def test_what_a_batch_comes_to(
    cancelled_at: float | None, any_expired: bool, status: BatchState, field: str
) -> None:
    closing = Closing(at=2.5, output_file_id="file-2", error_file_id="file-3", cancelled_at=cancelled_at)
    batch = under_way(begin(BATCH_ID, ORDER), Standing(checked=CHECKED, closing=closing), {})
    over = ended(batch, closing, completed=9, failed=1, any_expired=any_expired, at=9.9)
    assert over.status is status
    assert over.status.final
    assert getattr(over, field) == 9
    assert (over.output_file_id, over.error_file_id) == ("file-2", "file-3")
    assert over.request_counts.total == 10
    stamps = {"completed_at", "expired_at", "cancelled_at", "failed_at"}
    assert [name for name in stamps if getattr(over, name) is not None] == [field]


def test_a_file_without_lines_is_not_named() -> None:
    """As with OpenAI: no failed line, no error file."""
    batch = begin(BATCH_ID, ORDER)
    assert ended(batch, CLOSING, completed=2, failed=0, any_expired=False, at=1).error_file_id is None
    assert ended(batch, CLOSING, completed=0, failed=2, any_expired=False, at=1).output_file_id is None


def test_a_failed_batch_names_its_errors() -> None:
    error = BatchError(code="empty_file", message="none")
    batch = failed(begin(BATCH_ID, ORDER), error, at=7.7)
    assert batch.status is BatchState.FAILED
    assert batch.failed_at == 7
    assert batch.errors is not None
    assert batch.errors.data == (error,)


def test_a_batch_s_id_is_its_job_s() -> None:
    """Nothing else ties them: no table could lose the link."""
    assert job_id_of(BATCH_ID) == JOB_ID
    assert is_batch_id(BATCH_ID)
    assert created_at_of(BATCH_ID) == 1_700_000_000.123
    assert ends_at_of(BATCH_ID, ORDER) == 1_700_000_000.123 + 86_400
    assert not any(map(is_batch_id, ("batch_", JOB_ID, f"{BATCH_ID}/x", f"batch_{'0' * 100}", None)))


@pytest.mark.parametrize(("window", "seconds"), [("24h", 86_400), ("90m", 5400), ("168h", 604_800)])
def test_a_window_is_minutes_or_hours(window: str, seconds: float) -> None:
    assert window_s(window) == seconds


@pytest.mark.parametrize("window", ["", "24", "0h", "1d", "169h", "-1h", "24h ", "1.5h", "999999h", None, 24])
def test_other_windows_are_refused(window: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        window_s(window)
    assert refused.value.param == "completion_window"


@pytest.mark.parametrize("endpoint", ["/v1/completions", "/v1/responses", "", None])
def test_an_endpoint_that_no_task_serves_is_refused(endpoint: object) -> None:
    with pytest.raises(InvalidRequest, match="/v1/chat/completions"):
        check_endpoint(endpoint)


@pytest.mark.parametrize(
    "metadata",
    [{"a": 1}, {"": "x"}, {"x" * 65: "y"}, {"x": "y" * 513}, {str(n): "" for n in range(17)}, ["a"], "a"],
)
def test_metadata_is_up_to_16_pairs_of_short_text(metadata: object) -> None:
    check_metadata(None)
    check_metadata({"x" * 64: "y" * 512})
    with pytest.raises(InvalidRequest):
        check_metadata(metadata)


def test_looks_are_quick_at_first_and_grow_with_what_is_left() -> None:
    """Ten lines are over in a moment; a day's work is not looked at ten times a second."""
    assert next_look_s(elapsed_s=0.01, done=0, total=10) == LEAST_LOOK_S
    assert next_look_s(elapsed_s=1.0, done=50, total=100) == pytest.approx(0.3)
    assert next_look_s(elapsed_s=1.0, done=99, total=100) == LEAST_LOOK_S
    assert next_look_s(elapsed_s=3600, done=10, total=50_000) == LONGEST_LOOK_S
    waits = [next_look_s(elapsed_s=at, done=0, total=9) for at in (0.1, 1, 5, 20, 100)]
    assert waits == sorted(waits)
