"""What a start prints: every model's worst case and the settings in force."""

import pytest
from settings.settings_stage import loaded

from headgate.core.worst_case import WorstCase, worst_case
from headgate.settings import Settings
from headgate.settings.summary import describe, summary


def test_the_worst_case_is_every_attempt_at_every_upstream_until_the_deadline() -> None:
    assert worst_case([3, 3], 300.0) == WorstCase(calls=6, seconds=300.0)
    assert worst_case([1, 5, 2], 0.5) == WorstCase(calls=8, seconds=0.5)


@pytest.mark.parametrize(
    ("case", "line"),
    [
        (WorstCase(6, 300.0), "worst case: 6 calls, 300 s"),
        (WorstCase(1, 0.25), "worst case: 1 call, 0.25 s"),
        (WorstCase(10_000, 86_400_000), "worst case: 10000 calls, 86400000 s"),
    ],
)
def test_a_worst_case_reads_as_a_sentence(case: WorstCase, line: str) -> None:
    assert str(case) == line


def test_every_model_is_told_its_worst_case() -> None:
    text = "models: {summary: {upstreams: [{provider: cloud}, {provider: simulated}]}}"

    assert describe(loaded(text)) == [
        "summary: worst case: 6 calls, 300 s",
        "simulated: worst case: 3 calls, 300 s",
        "simulated/*: worst case: 3 calls, 300 s",
    ]
    assert describe(Settings(models={})) == []


def test_the_summary_shows_what_is_in_force_and_marks_what_is_unusual() -> None:
    text = """\
        logs_dir: /var/log/headgate
        models:
          simulated:
            upstreams:
              - {provider: cloud, model: small:4b, slots: 2, reserved_slots: 1, depth: 0, base_url: http://hidden}
              - provider: simulated
                interval_s: 0.5
                requests_per_minute: 60
                tokens_per_minute: 1000
                promote_after_s: 60
                preempt: true
                interactive_order: lifo
                adaptive: true
                spill: true
                breaker: false
                budget: false
            retry: {max_retries: 0}
            timeouts: {total_s: 90.5}
            balance: least_busy
            gather: {}
          simulated/*: {upstreams: [{provider: simulated}], retry: agents}
        """
    usual = "timeouts: connect 5 s, first token 60 s, idle 30 s"
    pacing = "every 0.5 s, 60 requests/min, 1000 tokens/min"
    unusual = "promote_after_s 60, preempt, interactive lifo, adaptive, spill, no breaker, no budget"
    assert summary(loaded(text)).splitlines() == [
        "data in .headgate, logs in /var/log/headgate",
        "simulated: worst case: 2 calls, 90.5 s",
        f"  no retries; {usual}, total 90.5 s; balance least_busy; gather 10 within 100 ms",
        "  1. cloud/small:4b: 2 slots, 1 reserved, depth unlimited",
        f"  2. simulated: 8 slots, 0 reserved, depth 20, {pacing}, {unusual}",
        "simulated/*: worst case: 4 calls, 300 s",
        f"  4 attempts, 1 s × 2 up to 20 s, jitter symmetric; {usual}, total 300 s",
        "  1. simulated: 8 slots, 0 reserved, depth 20",
    ]
