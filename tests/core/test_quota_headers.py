"""What rate-limit headers say of a provider's quotas: each spelling of them, and that garbage says nothing."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core.allowance import Quota, Quotas, read_quotas

NOW = datetime(2026, 11, 19, 12, 0, 0, tzinfo=UTC)
Headers = list[tuple[bytes, bytes]]


def openai(limit: str, remaining: str, reset: str, *, what: str = "requests") -> Headers:
    return [
        (f"x-ratelimit-limit-{what}".encode(), limit.encode()),
        (f"x-ratelimit-remaining-{what}".encode(), remaining.encode()),
        (f"x-ratelimit-reset-{what}".encode(), reset.encode()),
    ]


def anthropic(limit: str, remaining: str, reset: str, *, what: str = "requests") -> Headers:
    return [
        (f"anthropic-ratelimit-{what}-limit".encode(), limit.encode()),
        (f"anthropic-ratelimit-{what}-remaining".encode(), remaining.encode()),
        (f"anthropic-ratelimit-{what}-reset".encode(), reset.encode()),
    ]


@pytest.mark.parametrize(
    ("reset", "reset_s"),
    [
        ("1s", 1.0),
        ("12ms", 0.012),
        ("6m0s", 360.0),
        ("1h2m3.5s", 3723.5),
        ("1m30.951s", 90.951),
        ("2m", 120.0),
        ("1d2h", 93_600.0),
        ("1s500ms", 1.5),
        # Groq and some servers in OpenAI's format: plain seconds.
        ("7.66", 7.66),
        (" 20 ", 20.0),
    ],
)
def test_a_span_is_read_in_all_spellings(reset: str, reset_s: float) -> None:
    quotas = read_quotas(openai("60", "12", reset), lambda: NOW)

    assert quotas is not None
    assert quotas.tokens is None
    assert quotas.requests == pytest.approx((60, 12, reset_s))


@pytest.mark.parametrize(
    "reset",
    [
        "2026-11-19T12:00:42Z",
        "2026-11-19T12:00:42+00:00",
        "2026-11-19T14:00:42+02:00",
        "2026-11-19T12:00:42.000000Z",
        # Without a zone it is UTC, whatever the machine's zone is.
        "2026-11-19T12:00:42",
    ],
)
def test_a_reset_as_a_time_counts_from_now(reset: str) -> None:
    assert read_quotas(anthropic("50", "49", reset), lambda: NOW) == Quotas(Quota(50, 49, 42), None)


def test_requests_and_tokens_are_read_side_by_side() -> None:
    headers = openai("5000", "4999", "12ms") + openai("160000", "159976", "8ms", what="tokens")

    assert read_quotas(headers, lambda: NOW) == Quotas(
        Quota(5000, 4999, 0.012), Quota(160_000, 159_976, 0.008)
    )


def test_a_quota_that_is_not_exhausted_is_read_as_well_as_one_that_is() -> None:
    assert read_quotas(openai("60", "0", "60s"), lambda: NOW) == Quotas(Quota(60, 0, 60), None)


def test_one_unreadable_quota_does_not_hide_the_other() -> None:
    headers = openai("-1", "-1", "0s") + openai("1000", "10", "30s", what="tokens")

    assert read_quotas(headers, lambda: NOW) == Quotas(None, Quota(1000, 10, 30))


@pytest.mark.parametrize(
    ("limit", "remaining", "reset"),
    [
        # Azure sends these where it knows nothing.
        ("-1", "-1", "0"),
        ("0", "0", "0"),
        ("0", "-1", "1s"),
        ("60", "-1", "60s"),
        # A full bucket shows no refill, and more than full is nonsense.
        ("60", "60", "0s"),
        ("60", "60", "1s"),
        ("60", "61", "1s"),
        # A reset that is over, or that nobody can read.
        ("60", "10", "0s"),
        ("60", "10", "-5"),
        ("60", "10", "2026-11-19T11:59:59Z"),
        ("60", "10", ""),
        ("60", "10", "soon"),
        ("60", "10", "1 s"),
        ("60", "10", "1s1s"),
        ("60", "10", "s"),
        ("60", "10", "inf"),
        ("60", "10", "nan"),
        ("nan", "10", "1s"),
        ("60", "nan", "1s"),
        ("inf", "10", "1s"),
        ("many", "10", "1s"),
        ("60", "", "1s"),
    ],
)
def test_what_makes_no_sense_is_ignored(limit: str, remaining: str, reset: str) -> None:
    assert read_quotas(openai(limit, remaining, reset), lambda: NOW) is None


@pytest.mark.parametrize("left_out", [0, 1, 2])
def test_a_quota_with_a_missing_part_is_ignored(left_out: int) -> None:
    headers = openai("60", "10", "1s")
    del headers[left_out]

    assert read_quotas(headers, lambda: NOW) is None


def test_other_headers_say_nothing() -> None:
    headers: Headers = [
        (b"content-type", b"application/json"),
        (b"retry-after", b"20"),
        (b"x-ratelimit-limit", b"60"),
        (b"x-ratelimit-reset-requests-today", b"1s"),
        (b"anthropic-ratelimit-input-tokens-limit", b"10"),
    ]

    assert read_quotas(headers, lambda: NOW) is None
    assert read_quotas([], lambda: NOW) is None


# ---- Whatever comes ---------------------------------------------------------------------------------------

NAMES = [
    name
    for family in (openai, anthropic)
    for what in ("requests", "tokens")
    for name, _ in family("", "", "", what=what)
]
digits = st.text("0123456789", min_size=1, max_size=400)
spans = st.builds(
    "".join,
    st.lists(
        st.builds(str.__add__, digits, st.sampled_from(["d", "h", "m", "s", "ms", ".5s", "e9"])), max_size=5
    ),
)
times = st.builds(
    lambda at, zone: f"{at.isoformat()}{zone}",
    st.datetimes(),
    st.sampled_from(["", "Z", "+23:59", "-23:59", "+99:99"]),
)
numbers = (st.floats() | st.integers()).map(str)
values = st.binary(max_size=60) | (digits | spans | times | numbers).map(str.encode)
headers = st.lists(st.tuples(st.sampled_from(NAMES).map(bytes) | st.binary(max_size=40), values), max_size=14)


@given(headers=headers)
@settings(deadline=None, max_examples=500)
def test_no_header_breaks_the_reader(headers: Headers) -> None:
    """The answer that came with it must not be lost, and what is read must describe a bucket."""
    quotas = read_quotas(headers, lambda: NOW)

    for quota in () if quotas is None else (quotas.requests, quotas.tokens):
        assert quota is None or (0 <= quota.remaining < quota.limit < math.inf and quota.reset_s > 0)


@pytest.mark.parametrize("reset", ["9" * 400 + "s", "9" * 308 + "d", "9" * 308 + "h" + "9" * 308 + "m"])
def test_a_reset_that_never_comes_is_ignored(reset: str) -> None:
    """A bucket that is never refilled would keep the gate shut for ever."""
    assert read_quotas(openai("60", "0", reset), lambda: NOW) is None


@given(span_s=st.integers(1, 10**6))
@settings(deadline=None, max_examples=200)
def test_a_span_means_the_same_in_each_spelling(span_s: int) -> None:
    minutes, seconds = divmod(span_s, 60)
    hours = f"{minutes // 60}h{minutes % 60}m{seconds}s"
    spellings = [
        openai("60", "1", text)
        for text in (f"{span_s}", f"{span_s}s", f"{span_s * 1000}ms", f"{minutes}m{seconds}s", hours)
    ]
    at = NOW + timedelta(seconds=span_s)
    spellings.append(anthropic("60", "1", at.isoformat()))

    for spelling in spellings:
        quotas = read_quotas(spelling, lambda: NOW)
        assert quotas is not None
        assert quotas.requests == pytest.approx((60, 1, span_s))
