"""`webhooks` and `alerts` in the settings: read strictly, and no address and no secret ever shows."""

import pytest
from settings.settings_stage import error_of, loaded, mistakes_in

from headgate.core.alert_rules import AlertRules
from headgate.core.webhook import WebhookRules
from headgate.settings.summary import summary

SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
URL = "https://hooks.example/T024/B77/xoxb-of-a-channel"


def test_all_of_it_is_read() -> None:
    env = {"HOOK_SECRET": SECRET, "HEADGATE__WEBHOOKS__TIMEOUT_S": "20"}
    text = f"""\
        webhooks:
          url: {URL}
          events: [dead_letter, alert]
          secret: ${{HOOK_SECRET}}
          allow_private: yes
    """
    assert loaded(text, env).webhooks == WebhookRules(
        url=URL, events=("dead_letter", "alert"), secret=SECRET, allow_private=True, timeout_s=20
    )


@pytest.mark.parametrize("text", ["", "webhooks:", "webhooks: {}", "webhooks: {url: null, secret: null}"])
def test_without_it_only_jobs_addresses_are_told(text: str) -> None:
    assert loaded(text).webhooks == WebhookRules()


def test_all_of_the_alerts_is_read() -> None:
    text = f"""\
        alerts:
          dead_letters_per_hour: 3
          retry_failure_rate: 0.2
          duplicate_key_rate: 0.9
          job_delay_s: 60
          rejected_rate: 0.3
          error_rate: 0.1
          server_error_rate: 0.02
          latency_p99_s: 30
          loop_lag_s: 1
          webhook: {URL}
    """
    settings = loaded(text)
    assert settings.alerts == AlertRules(
        dead_letters_per_hour=3,
        retry_failure_rate=0.2,
        duplicate_key_rate=0.9,
        job_delay_s=60,
        rejected_rate=0.3,
        error_rate=0.1,
        server_error_rate=0.02,
        latency_p99_s=30,
        loop_lag_s=1,
        webhook=URL,
    )
    assert "xoxb" not in summary(settings) + repr(settings)
    assert mistakes_in("alerts: {retry_failure_rate: 5}") == [
        "alerts.retry_failure_rate: must be at most 1, not 5"
    ]


def test_every_mistake_is_told_where_it_is() -> None:
    text = "webhooks: {url: hooks.example, event: [completed], events: [complete], timeout_s: soon}"
    assert mistakes_in(text) == [
        "webhooks.url: must be a URL that begins with http:// or https:// and holds no user name, password or space",
        "webhooks.event: is no setting; did you mean 'events'? known: allow_private, events, secret, timeout_s, url",
        "webhooks.events[0]: must be one of completed, dead_letter, alert, not 'complete'",
        "webhooks.timeout_s: must be a number, not 'soon'",
    ]


@pytest.mark.parametrize("host", ["[::1", ":8080", "hooks.example:99999", "hooks.example:0"])
def test_an_address_that_can_never_be_reached_is_a_mistake(host: str) -> None:
    """Found at the first delivery, it would be a dead letter for each event, long after the start."""
    why = "must name a host, and no port or one from 1 to 65535"
    assert mistakes_in(f"webhooks: {{url: 'https://{host}/x'}}") == [f"webhooks.url: {why}"]
    assert mistakes_in(f"alerts: {{webhook: 'https://{host}/x'}}") == [f"alerts.webhook: {why}"]
    assert loaded("webhooks: {url: 'http://[::1]:8080/x'}").webhooks.url


@pytest.mark.parametrize(
    "text",
    [
        "webhooks: {url: 'hooks.example/T024/xoxb-of-a-channel'}",
        "webhooks: {url: 'https://me:xoxb-of-a-channel@hooks.example/'}",
        "webhooks: {url: [xoxb-of-a-channel]}",
        "webhooks: {secret: xoxb-of-a-channel}",
        "webhooks: {secret: [xoxb-of-a-channel]}",
        "alerts: {webhook: 'hooks.example/T024/xoxb-of-a-channel'}",
    ],
)
def test_a_mistake_does_not_quote_an_address_or_a_secret(text: str) -> None:
    """Reports are pasted into tickets; the path of such an address is often all that guards it."""
    assert "xoxb" not in str(error_of(text))


def test_the_settings_in_force_show_neither() -> None:
    settings = loaded(f"webhooks: {{url: '{URL}', secret: '{SECRET}', events: [alert], allow_private: true}}")
    for shown in (summary(settings), repr(settings)):
        assert "xoxb" not in shown
        assert SECRET not in shown
    assert "webhooks: alert to the address set, private ones too, answered within 15 s\n" in summary(settings)
