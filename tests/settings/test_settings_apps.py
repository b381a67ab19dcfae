"""Applications in the settings: who is listed is mounted, options are read strictly, old variables still count."""

from typing import Any

import pytest

from headgate import wiring
from headgate.apps.articles import Options
from headgate.core.problems import InvalidSettings
from headgate.settings import Settings

MODELS = {"summary": {"upstreams": [{"provider": "simulated"}, {"provider": "simulated", "depth": 7}]}}


def read(apps: Any, env: dict[str, str] | None = None, **more: Any) -> Settings:
    return wiring.read_settings({"models": MODELS, "apps": apps, **more}, env=env or {})


def mistakes(apps: Any, env: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(InvalidSettings) as caught:
        read(apps, env)
    return [str(problem) for problem in caught.value.problems]


def depths(settings: Settings, model: str = "summary") -> list[int]:
    return [upstream.gate.depth for upstream in settings.models[model].upstreams]


@pytest.mark.parametrize("nothing", [None, {}])
def test_nothing_is_mounted_by_itself(nothing: Any) -> None:
    assert read(nothing).apps == {}


@pytest.mark.parametrize("options", [None, {}])
def test_who_is_listed_is_mounted_with_its_defaults(options: Any) -> None:
    assert read({"articles": options}).apps == {"articles": Options()}


def test_options_are_read_into_the_applications_own_record() -> None:
    given = {"model": "summary", "max_retries": 5, "temperature": None}
    assert read({"articles": given}).apps["articles"] == Options(
        model="summary", max_retries=5, temperature=None
    )


@pytest.mark.parametrize(
    ("apps", "told"),
    [
        ({"article": {}}, "apps.article: is no setting; did you mean 'articles'?"),
        ({"articles": {"modle": "x"}}, "apps.articles.modle: is no setting; did you mean 'model'?"),
        ({"articles": 7}, "apps.articles: must be a mapping, not"),
        ([], "apps: must be a mapping, not"),
        ({"articles": {"max_retries": 0}}, "apps.articles.max_retries: must be at least 1, not 0"),
        (
            {"articles": {"max_repetition_retries": "two"}},
            "apps.articles.max_repetition_retries: must be a whole",
        ),
        (
            {"articles": {"model": "sumary"}},
            "apps.articles.model: no model is called 'sumary'; did you mean 'summary'?",
        ),
    ],
)
def test_mistakes_are_told_at_their_place(apps: Any, told: str) -> None:
    [mistake] = mistakes(apps)
    assert mistake.startswith(told)


def test_a_model_may_be_a_member_of_a_family() -> None:
    assert read({"articles": {"model": "simulated/slow"}}).apps["articles"].model == "simulated/slow"


# ---- The variables of the first design ----------------------------------------------------------------------------


def test_max_repetition_retries_counts_where_nothing_else_is_said() -> None:
    env = {"MAX_REPETITION_RETRIES": "5"}
    assert read({"articles": {}}, env).apps["articles"].max_repetition_retries == 5
    assert read({"articles": {"max_repetition_retries": 1}}, env).apps["articles"].max_repetition_retries == 1
    over = {**env, "HEADGATE__APPS__ARTICLES__MAX_REPETITION_RETRIES": "3"}
    assert read({"articles": {}}, over).apps["articles"].max_repetition_retries == 3


@pytest.mark.parametrize(("value", "depth"), [("10", 10), ("0", 0), ("", 20), (" ", 20)])
def test_max_queue_depth_is_the_depth_of_upstreams_that_have_none(value: str, depth: int) -> None:
    """0 means no bound, as in the seed, and 20 is its default; a depth of the file stays."""
    settings = read({"articles": {"model": "summary"}}, {"MAX_QUEUE_DEPTH": value})
    assert depths(settings) == [depth, 7]
    assert depths(settings, "simulated") == [1000], "only of its model"


def test_out_of_the_box_it_holds_for_the_simulated_model() -> None:
    assert depths(read({"articles": {}}, {"MAX_QUEUE_DEPTH": "4"}), "simulated") == [4]


def test_a_member_of_a_family_takes_it_from_there() -> None:
    settings = read({"articles": {"model": "simulated/slow"}}, {"MAX_QUEUE_DEPTH": "4"})
    assert depths(settings, "simulated/*") == [4]


def test_without_the_application_they_mean_nothing() -> None:
    assert depths(read({}, {"MAX_QUEUE_DEPTH": "4", "MAX_REPETITION_RETRIES": "x"})) == [1000, 7]


def test_a_mistake_in_them_names_the_variable() -> None:
    env = {"MAX_QUEUE_DEPTH": "many", "MAX_REPETITION_RETRIES": "-1"}
    told = mistakes({"articles": {"model": "summary"}}, env)
    assert told == [
        "models.summary.upstreams[0].depth: must be a whole number, not 'many' (set by MAX_QUEUE_DEPTH)",
        "apps.articles.max_repetition_retries: must be at least 0, not -1 (set by MAX_REPETITION_RETRIES)",
    ]


WEBHOOKS = {"webhooks": {"url": "https://example.org/hook"}}


@pytest.mark.parametrize("app", ["articles", "bookmarks"])
def test_results_that_leave_by_a_webhook_are_simulated_only_on_purpose(app: str) -> None:
    """Without a model the simulated one answers, and a receiver elsewhere cannot tell."""
    with pytest.raises(InvalidSettings, match=rf"apps\.{app}\.model: is not set, and webhooks\.url"):
        read({app: None}, **WEBHOOKS)
    assert read({app: {"model": "simulated"}}, **WEBHOOKS).apps[app].model == "simulated"
    assert read({app: None}, webhooks={**WEBHOOKS["webhooks"], "events": ["alert"]}).apps[app]
    real = {"simulated": {"upstreams": [{"provider": "openai", "model": "x", "api_key": "k"}]}}
    assert wiring.read_settings({"models": real, "apps": {app: None}, **WEBHOOKS}, env={}).apps[app]
