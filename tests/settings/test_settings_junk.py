"""Whatever is thrown at the reader, the answer is settings or a list of mistakes: never another error."""

import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from settings.settings_stage import PROVIDERS, loaded

from headgate.core.idempotency import IdempotencyRules
from headgate.core.job_rules import JobRules
from headgate.core.problems import InvalidSettings
from headgate.settings import Settings, load
from headgate.settings.fields import names_of
from headgate.settings.places import written
from headgate.settings.reader import KNOWN_KEYS, PRESETS
from headgate.settings.records import ModelSettings, UpstreamSettings
from headgate.settings.summary import summary

WORDS = sorted(
    KNOWN_KEYS
    | names_of(Settings)
    | names_of(ModelSettings)
    | names_of(UpstreamSettings)
    | names_of(JobRules)
    | names_of(IdempotencyRules)
    | {"max_attempts", "max_retries", "jitter", "size", "wait_ms", "total_s", "m", "simulated", "simulated/*"}
)
LEAVES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 20),
    st.floats(),
    st.text(max_size=10),
    st.sampled_from([*PRESETS, "cloud", "simulated", "full", "${A}", "${B}", "$${", "1e400", ".nan", "lifo"]),
    st.binary(max_size=2),
)
KEYS: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(WORDS), st.text(max_size=5), st.integers(0, 3), st.none()
)


def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=5))


JUNK = st.recursive(LEAVES, grown, max_leaves=25)
UPSTREAMS = st.lists(st.dictionaries(st.sampled_from(sorted(KNOWN_KEYS)), JUNK, max_size=6), max_size=3)
MODELS = st.dictionaries(
    st.sampled_from(["m", "a.b", "simulated", "f/*"]),
    st.fixed_dictionaries(
        {"upstreams": UPSTREAMS},
        optional=dict.fromkeys(("retry", "timeouts", "balance", "gather", "x"), JUNK),
    ),
)
JOBS = st.fixed_dictionaries({}, optional=dict.fromkeys([*sorted(names_of(JobRules)), "x"], JUNK))
KEY_RULES = st.fixed_dictionaries(
    {}, optional=dict.fromkeys([*sorted(names_of(IdempotencyRules)), "x"], JUNK)
)
URLS = st.text(st.sampled_from("ab1:@/?#[]%=&, é"), max_size=12).map(lambda rest: f"postgres://{rest}")
NEARLY_RIGHT = st.fixed_dictionaries(
    {},
    optional={
        "models": MODELS,
        "data_dir": JUNK,
        "logs_dir": JUNK,
        "database": st.one_of(JUNK, URLS),
        "jobs": st.one_of(JUNK, JOBS),
        "idempotency": st.one_of(JUNK, KEY_RULES),
        "x": JUNK,
    },
)
ENVIRONMENT = st.dictionaries(
    st.lists(
        st.sampled_from(
            ["MODELS", "M", "0", "1", "UPSTREAMS", "SLOTS", "RETRY", "JOBS", "TASKS", "DATABASE", "", "A_B"]
        ),
        max_size=5,
    ).map(lambda parts: "HEADGATE__" + "__".join(parts)),
    st.one_of(st.text(max_size=8), st.sampled_from(["5", "[]", "{}", "{a: 1}", "null", "[[1]]", "web"])),
    max_size=4,
)


def judge(source: Any, env: dict[str, str]) -> None:
    """Settings are usable; mistakes are told once each, without secrets."""
    try:
        settings = load(source, env={"A": "sk-12345", **env}, providers=PROVIDERS)
    except InvalidSettings as error:
        problems = error.problems
    else:
        assert summary(settings)
        return
    assert problems
    assert len(set(problems)) == len(problems)
    assert "sk-12345" not in str(problems)


@given(tree=st.dictionaries(KEYS, JUNK, max_size=5), env=ENVIRONMENT)
def test_any_mapping_gives_settings_or_mistakes(tree: Any, env: dict[str, str]) -> None:
    judge(tree, env)


@given(tree=NEARLY_RIGHT, env=ENVIRONMENT)
def test_a_mapping_that_is_nearly_right_gives_settings_or_mistakes(tree: Any, env: dict[str, str]) -> None:
    judge(tree, env)


@given(
    text=st.text(
        alphabet=st.sampled_from("abms:-[]{}&*!#|>'\"%@?,~ \n\t\r$01.é\u2028\x85\ufeff"), max_size=60
    )
)
@example("? a\n: b")
@example("!!binary =")
@example("%YAML 9.9\n---\na: 1")
@example("%TAG ! tag:x,2000:\n---\n!a b")
@example("--- >\n")
@example("a: |+\n\n\n")
@example("\ufeffa: 1")
def test_any_text_gives_settings_or_mistakes(text: str) -> None:
    with suppress(InvalidSettings):
        loaded(text)


@given(
    slots=st.integers(1, 1000),
    attempts=st.integers(1, 100),
    total_s=st.floats(1e-3, 1e9, allow_nan=False),
    name=st.text(
        st.characters(exclude_characters="*", categories=("L", "N", "P", "S")), min_size=1, max_size=200
    ),
)
def test_what_is_right_arrives_unchanged(slots: int, attempts: int, total_s: float, name: str) -> None:
    model = {
        "upstreams": [{"provider": "cloud", "slots": slots}],
        "retry": {"max_attempts": attempts},
        "timeouts": {"total_s": total_s},
    }
    settings = load({"models": {name: model}}, env={}, providers=PROVIDERS)

    read = settings.models[name]
    assert read.upstreams[0].gate.slots == slots
    assert read.retry.max_attempts == attempts
    assert math.isclose(read.timeouts.total_s, total_s)


@given(place=st.lists(st.one_of(st.text(max_size=300), st.integers(0, 99)), max_size=6))
def test_a_path_is_always_one_short_printable_line(place: list[str | int]) -> None:
    path = written(tuple(place))

    assert path.isprintable()
    assert len(path) <= 6 * 450


@pytest.mark.parametrize("source", ["", b"x", 5])
def test_a_source_of_a_wrong_type_is_the_programmers_mistake(source: Any) -> None:
    with pytest.raises((TypeError, InvalidSettings)):
        load(source, env={}, providers=PROVIDERS)
