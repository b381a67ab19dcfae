"""What a correct file means, key by key, and where settings may come from."""

from dataclasses import replace
from pathlib import Path

import pytest
from settings.settings_stage import PROVIDERS, loaded

from headgate import wiring
from headgate.calls.routes import Balance, Gather
from headgate.core.gate_rules import GateRules, Order
from headgate.core.pacing import PacingRules
from headgate.core.problems import InvalidSettings
from headgate.core.retry import Jitter, RetryPolicy
from headgate.core.timeouts import Timeouts
from headgate.settings import ModelSettings, Settings, UpstreamSettings, load

FULL = """
data_dir: /var/lib/headgate
logs_dir: /var/log/headgate
models:
  summary:
    upstreams:
      - provider: cloud
        model: small:4b
        base_url: http://127.0.0.1:11434
        headers: {x-team: news}
        slots: 2
        reserved_slots: 1
        depth: 0
        promote_after_s: 60
        hold_wait_s: 0.5
        longest_pause_s: 30
        preempt: yes
        interactive_order: lifo
        interval_s: 0.25
        requests_per_minute: 600
        tokens_per_minute: 100_000
        adaptive: off
        spill: on
        breaker: off
        retry_budget: 0.5
      - {provider: simulated}
    retry: {max_attempts: 4, first_wait_s: 0, factor: 1, longest_wait_s: 1e1, jitter: symmetric, jitter_s: .25, count_throttles: yes}
    timeouts: {connect_s: 1, first_token_s: 2, idle_s: 3, total_s: 4}
    balance: least_busy
    gather: {size: 1000, wait_ms: 0}
    patience_s: 0.5
    wait: no
"""


def only_model(body: str) -> ModelSettings:
    return loaded(f"models: {{m: {{upstreams: [{{provider: cloud}}], {body}}}}}").models["m"]


def test_every_key_reaches_its_record() -> None:
    pacing = PacingRules(interval_s=0.25, requests_per_minute=600, tokens_per_minute=100_000)
    gate = GateRules(
        slots=2,
        reserved_slots=1,
        depth=0,
        promote_after_s=60,
        hold_wait_s=0.5,
        longest_pause_s=30,
        adaptive=False,
        breaker=False,
        preempt=True,
        interactive_order=Order.LIFO,
        pacing=pacing,
    )
    cloud = UpstreamSettings(
        provider="cloud",
        model="small:4b",
        gate=gate,
        spill=True,
        retry_budget=0.5,
        options={"base_url": "http://127.0.0.1:11434", "headers": {"x-team": "news"}},
    )
    retry = RetryPolicy(
        max_attempts=4,
        first_wait_s=0,
        factor=1,
        longest_wait_s=10,
        jitter=Jitter.SYMMETRIC,
        jitter_s=0.25,
        count_throttles=True,
    )

    settings = loaded(FULL)

    assert settings.models["summary"] == ModelSettings(
        upstreams=(cloud, UpstreamSettings(provider="simulated")),
        retry=retry,
        timeouts=Timeouts(connect_s=1, first_token_s=2, idle_s=3, total_s=4),
        balance=Balance.LEAST_BUSY,
        gather=Gather(size=1000, wait_ms=0),
        patience_s=0.5,
        wait=False,
    )
    assert settings.data_dir == Path("/var/lib/headgate")
    assert settings.logs_path == Path("/var/log/headgate")


def test_a_model_needs_nothing_but_a_provider() -> None:
    hosted = UpstreamSettings(provider="cloud", gate=GateRules(slots=64))
    assert only_model("") == ModelSettings(upstreams=(hosted,))


@pytest.mark.parametrize(
    ("provider", "slots"),
    [
        ("openai", 64),
        ("anthropic", 64),
        ("bedrock", 64),
        ("one-of-my-own", 64),
        ("ollama", 2),
        ("simulated", 8),
    ],
)
def test_a_machine_of_ones_own_has_few_slots_and_a_hosted_api_many(provider: str, slots: int) -> None:
    """A hosted API says by itself when there are too many calls; a machine of one's own only gets slow."""
    file = {"models": {"m": {"upstreams": [{"provider": provider}]}}}
    settings = load(file, env={}, providers={**PROVIDERS, provider: lambda model, options: None})

    assert settings.models["m"].upstreams[0].gate == GateRules(slots=slots)


@pytest.mark.parametrize(
    "text", ["", "\n", "# only a comment\n", "---\n", "null", "{}", "models:", "models: {}"]
)
def test_an_empty_file_means_the_defaults(text: str) -> None:
    settings = loaded(text)

    assert settings == Settings()
    assert list(settings.models) == ["simulated", "simulated/*"]
    assert settings.models["simulated/*"].upstreams == (UpstreamSettings(provider="simulated"),)
    assert settings.logs_path == Path(".headgate/logs")


def test_the_simulated_models_are_always_there_and_may_be_defined_otherwise() -> None:
    settings = loaded(
        "models: {m: {upstreams: [{provider: cloud}]}, simulated: {upstreams: [{provider: cloud}]}}"
    )

    assert list(settings.models) == ["m", "simulated", "simulated/*"]
    assert settings.models["simulated"].upstreams[0].provider == "cloud"


@pytest.mark.parametrize("section", ["retry:", "timeouts:", "gather:", "retry: {}", "timeouts: null"])
def test_an_empty_section_means_its_defaults(section: str) -> None:
    assert only_model(section.replace(":", ": ")) == only_model("")


@pytest.mark.parametrize(
    ("retry", "policy"),
    [
        ("bedrock", RetryPolicy.bedrock()),
        ("web", RetryPolicy.web()),
        ("agents", RetryPolicy.agents()),
        ("{max_retries: 0}", replace(RetryPolicy.sdk(), max_attempts=1)),
        ("{max_retries: 99, factor: 3}", replace(RetryPolicy.sdk(), max_attempts=100, factor=3)),
    ],
)
def test_retry_is_a_preset_or_counts_retries_instead_of_attempts(retry: str, policy: RetryPolicy) -> None:
    assert only_model(f"retry: {retry}").retry == policy


@pytest.mark.parametrize(
    "name", ["a", "x" * 200, "gpt-4.1", "größe", "on", "off", "'1'", "two words", "a/b", "a/b/*"]
)
def test_a_model_may_have_any_printable_name(name: str) -> None:
    settings = loaded(f"models: {{{name}: {{upstreams: [{{provider: cloud}}]}}}}")

    assert name.strip("'") in settings.models


def test_a_mapping_has_the_same_shape_as_a_file() -> None:
    mapping = {
        "models": {"m": {"upstreams": ({"provider": "cloud", "slots": 3},), "balance": Balance.LEAST_BUSY}},
        "data_dir": Path("here"),
    }

    settings = load(mapping, env={}, providers=PROVIDERS)

    assert settings.models["m"].upstreams[0].gate.slots == 3
    assert settings.models["m"].balance is Balance.LEAST_BUSY
    assert settings.data_dir == Path("here")


def test_what_is_read_shares_nothing_with_the_mapping() -> None:
    headers = {"x-team": "news"}
    mapping = {"models": {"m": {"upstreams": [{"provider": "cloud", "headers": headers}]}}}

    settings = load(mapping, env={}, providers=PROVIDERS)
    headers["x-team"] = "sport"

    assert settings.models["m"].upstreams[0].options == {"headers": {"x-team": "news"}}
    assert list(mapping["models"]) == ["m"]


def test_settings_built_in_code_are_taken_as_they_are() -> None:
    settings = Settings(models={"m": ModelSettings(upstreams=(UpstreamSettings(provider="cloud"),))})

    assert load(settings, env={"HEADGATE__DATA_DIR": "x"}, providers=PROVIDERS) is settings


def test_the_providers_of_settings_built_in_code_are_checked_too() -> None:
    upstreams = (
        UpstreamSettings(provider="clod"),
        UpstreamSettings(provider="cloud", options={"api_key": "bad-secret", "color": 5, "depht": 1}),
    )
    settings = Settings(models={"m": ModelSettings(upstreams=upstreams)})

    with pytest.raises(InvalidSettings) as caught:
        load(settings, env={}, providers=PROVIDERS)

    assert [str(problem) for problem in caught.value.problems] == [
        "models.m.upstreams[0].provider: no provider is called 'clod'; did you mean 'cloud'? known: cloud, simulated",
        "models.m.upstreams[1].api_key: is wrong: *** in {'api_key': ***, 'color': 5, 'depht': 1}",
        "models.m.upstreams[1].color: is no option of cloud: 5",
        "models.m.upstreams[1].depht: is no option of cloud: 1; did you mean 'depth'?",
    ]


@pytest.mark.parametrize("provider", ["azure", "gemini", "vertex", "groq", "mistral", "openrouter", "vllm"])
def test_a_service_that_is_no_provider_is_answered_with_how_to_use_it(provider: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        wiring.read_settings({"models": {"m": {"upstreams": [{"provider": provider, "model": "x"}]}}}, env={})

    (problem,) = caught.value.problems
    assert str(problem) == (
        f"models.m.upstreams[0].provider: no provider is called {provider!r}; known: anthropic, bedrock, ollama, openai,"
        " simulated. For a service that speaks OpenAI's format write provider: openai, with its base_url"
    )


def test_a_slip_in_a_provider_s_name_is_only_answered_with_the_name() -> None:
    with pytest.raises(InvalidSettings) as caught:
        wiring.read_settings({"models": {"m": {"upstreams": [{"provider": "opnai", "model": "x"}]}}}, env={})

    assert str(caught.value.problems[0]).endswith(
        "did you mean 'openai'? known: anthropic, bedrock, ollama, openai, simulated"
    )


def test_the_file_in_the_working_directory_is_read_when_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(env={}, providers=PROVIDERS) == Settings()

    Path("headgate.yaml").write_text("data_dir: found", encoding="utf-8")
    assert load(env={}, providers=PROVIDERS).data_dir == Path("found")
    assert load("headgate.yaml", env={}, providers=PROVIDERS).data_dir == Path("found")


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "notepad.yaml"
    path.write_bytes(b"\xef\xbb\xbfdata_dir: here\r\n")

    assert load(path, env={}, providers=PROVIDERS).data_dir == Path("here")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a" * 1_000_001, "the file is larger than 1,000,000 bytes"),
        ("é".encode() * 600_000, "the file is larger than 1,000,000 bytes"),
        (b"data_dir: caf\xe9", "the file is not UTF-8 text (byte 13)"),
        (b"- a list", "must be a mapping, not a list"),
        (b"models", "must be a mapping, not a single value"),
        (b"a: \x07", "line 1, column 4: the character U+0007 is not allowed"),
    ],
)
def test_a_file_that_cannot_be_settings_is_refused_by_its_name(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "some.yaml"
    path.write_bytes(content)

    with pytest.raises(InvalidSettings) as caught:
        load(path, env={"HEADGATE__MODELS__M__BALANCE": "ordered"}, providers=PROVIDERS)

    assert [str(problem) for problem in caught.value.problems] == [f"{path}: {message}"]


def test_a_named_file_must_be_there_and_be_a_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"missing\.yaml: there is no such file"):
        load(tmp_path / "missing.yaml", env={}, providers=PROVIDERS)
    with pytest.raises(InvalidSettings, match="the file cannot be read: Is a directory"):
        load(tmp_path, env={}, providers=PROVIDERS)
    with pytest.raises(InvalidSettings, match="the file cannot be read"):
        load("a\0b", env={}, providers=PROVIDERS)


def test_a_file_of_exactly_a_million_bytes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_bytes(b"data_dir: large\n".ljust(1_000_000, b"#"))

    assert load(path, env={}, providers=PROVIDERS).data_dir == Path("large")
