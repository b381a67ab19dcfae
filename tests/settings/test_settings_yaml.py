"""YAML is read more strictly than YAML asks for, by either of its two parsers."""

from typing import Any

import pytest
import yaml
from settings.settings_stage import loaded, mistakes_in

from headgate.settings import yaml_text
from headgate.settings.findings import Findings
from headgate.settings.yaml_text import meaning

LOADERS = [yaml.SafeLoader, *([yaml.CSafeLoader] if hasattr(yaml, "CSafeLoader") else [])]


@pytest.fixture(autouse=True, params=LOADERS, ids=lambda loader: loader.__name__)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_text, "_LOADER", request.param)


def read(text: str) -> Any:
    findings = Findings()
    value = yaml_text.read_yaml(text, findings)
    findings.refuse()
    return value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("-5", -5),
        ("+5", 5),
        ("010", 10),
        ("1_000", 1000),
        ("1_", 1),
        ("0x10", "0x10"),
        ("1:30", "1:30"),
        ("1.5", 1.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("1e3", 1000.0),
        ("1.5E-3", 0.0015),
        ("-.inf", float("-inf")),
        (".INF", float("inf")),
        ("1e999", float("inf")),
        ("2026-01-31", "2026-01-31"),
        ("9" * 18, int("9" * 18)),
        ("9" * 19, "9" * 19),
        ("9" * 5000, "9" * 5000),
        ("true", True),
        ("Yes", True),
        ("ON", True),
        ("off", False),
        ("No", False),
        ("tRue", "tRue"),
        ("~", None),
        ("Null", None),
        ("none", "none"),
        ("'5'", "5"),
        ('"yes"', "yes"),
        ("''", ""),
        ("|\n  two\n  lines\n", "two\nlines\n"),
        ("a:b", "a:b"),
        ("=", "="),
    ],
)
def test_a_bare_word_means_what_it_looks_like(text: str, value: object) -> None:
    result = read(text)

    assert result == value
    assert type(result) is type(value)


def test_nan_is_read_as_nan_so_that_the_record_can_refuse_it() -> None:
    assert str(meaning(".nan")) == str(meaning(".NaN")) == "nan"


def test_lists_and_mappings_nest() -> None:
    assert read("a: [1, {b: [], c: {}}]\nd:\n- e\n-\n") == {"a": [1, {"b": [], "c": {}}], "d": ["e", None]}


def test_a_doubled_key_is_told_with_both_lines() -> None:
    """PyYAML keeps the last one silently: half of a file could be without effect."""
    text = """\
        models:
          m:
            upstreams: [{provider: cloud, slots: 1,
              slots: 2}]
            retry: web
            "retry": agents
          m: {}
        """
    assert mistakes_in(text) == [
        "models.m: is given twice, on line 2 and on line 7",
        "models.m.upstreams[0].slots: is given twice, on line 3 and on line 4",
        "models.m.retry: is given twice, on line 5 and on line 6",
    ]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("models:\n  m: [", "line"),
        ("models: a: b", "line 1, column 10"),
        ("models:\n\tm: 1", "line 2, column 1"),
        ("models: 'open", "line 1, column"),
        ("a: }", "line 1, column 4"),
        ("a: 1\n b: 2", "line 2, column 3"),
        ("a: @x", "line 1, column 4"),
    ],
)
def test_a_text_that_is_not_yaml_is_told_with_line_and_column(text: str, place: str) -> None:
    (mistake,) = mistakes_in(text)

    assert mistake.startswith(place)


def test_a_variable_inside_braces_without_quotes_gets_a_hint() -> None:
    """`{api_key: ${KEY}}` is no YAML, and its parsers complain about something else."""
    (mistake,) = mistakes_in("models:\n  m: {upstreams: [{provider: cloud, api_key: ${KEY}}]}")

    assert mistake.startswith("line 2, column")
    assert mistake.endswith('(inside braces, variables need quotes: "${NAME}")')


def test_a_second_document_is_refused() -> None:
    assert mistakes_in("data_dir: a\n---\ndata_dir: b\n") == [
        "line 2, column 1: a second document starts; there may be only one"
    ]


def test_a_billion_laughs_are_refused_before_the_first() -> None:
    lines = ["a0: &a0 [ha, ha, ha]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]

    mistakes = mistakes_in("\n".join(lines))

    assert mistakes[0] == "a0: YAML's anchors (&) are refused: write values out where they are used"
    assert "a1[0]: YAML's aliases (*) are refused: write the value out" in mistakes
    assert len(mistakes) == 10 + 9 * 9 + 10  # anchors, aliases, unknown keys


def test_an_alias_hides_no_other_mistake_and_causes_none() -> None:
    text = """\
        models:
          a: &base {upstreams: [{provider: cloud, slots: 0}]}
          b: *base
          c: {upstreams: [{provider: cloud, slots: *base, depth: -1}], retry: *base}
        """
    assert mistakes_in(text) == [
        "models.a: YAML's anchors (&) are refused: write values out where they are used",
        "models.a.upstreams[0].slots: must be at least 1, not 0",
        "models.b: YAML's aliases (*) are refused: write the value out",
        "models.c.upstreams[0].slots: YAML's aliases (*) are refused: write the value out",
        "models.c.upstreams[0].depth: must be at least 0, not -1",
        "models.c.retry: YAML's aliases (*) are refused: write the value out",
    ]


@pytest.mark.parametrize(
    "value", ["!!int '5'", "!!python/object:os.system x", "!custom {}", "! x", "!!set {a}"]
)
def test_tags_are_refused(value: str) -> None:
    assert mistakes_in(f"data_dir: {value}") == [
        "data_dir: YAML's tags (!) are refused: write the plain value"
    ]


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 50_000, "- " * 100_000, "? " * 50_000])
def test_deep_nesting_is_refused_at_once(text: str) -> None:
    (mistake,) = mistakes_in(text)

    assert "nested more than 32 levels deep" in mistake or "a key must be text" in mistake


@pytest.mark.parametrize("key", ["1", "1.5", "~", ".nan", "null"])
def test_a_model_name_that_yaml_takes_for_something_else_needs_quotes(key: str) -> None:
    assert mistakes_in(f"models: {{{key}: {{upstreams: [{{provider: cloud}}]}}}}") == [
        f"models.{key}: model names must be text: quote it"
    ]


def test_other_keys_must_be_text_as_well() -> None:
    assert mistakes_in("models: {m: {upstreams: [{provider: cloud, headers: {5: x}}]}}") == [
        "models.m.upstreams[0].headers.5: keys must be text: quote it"
    ]
    assert mistakes_in("[a, b]: x") == ["line 1, column 1: a key must be text"]


def test_a_merge_key_is_an_unknown_key() -> None:
    assert mistakes_in("<<: {data_dir: x}")[0].startswith("<<: is no setting; known: ")


def test_windows_line_ends_are_fine() -> None:
    settings = loaded("data_dir: here\r\nmodels:\r\n  m: {upstreams: [{provider: cloud}]}\r\n")

    assert "m" in settings.models
