"""`$NAME` without braces was meant to be filled in. Taken as it is, it would be a key that no provider knows."""

import pytest
from settings.settings_stage import loaded, mistakes_in

from headgate import wiring
from headgate.core.problems import InvalidSettings

KEY = "models: {{m: {{upstreams: [{{provider: cloud, api_key: {value}}}]}}}}"


@pytest.mark.parametrize("value", ["$OPENAI_API_KEY", "'$OPENAI_API_KEY'", '" $OPENAI_API_KEY "'])
def test_a_value_that_is_only_a_variable_without_braces_is_an_error_that_names_the_braces(value: str) -> None:
    assert mistakes_in(KEY.format(value=value), {"OPENAI_API_KEY": "hush-hush"}) == [
        "models.m.upstreams[0].api_key: a variable is filled in only with braces: write ${OPENAI_API_KEY}"
    ]


@pytest.mark.parametrize("value", ["'$5'", "a$NAME", "$NAME.x", "'$'", "$$NAME", "'$$${NAME}'"])
def test_another_text_with_a_dollar_is_no_mistake(value: str) -> None:
    assert loaded(KEY.format(value=value), {"NAME": "x"}).models["m"].upstreams[0].options["api_key"]


def test_a_literal_that_looks_like_a_variable_can_come_from_one() -> None:
    settings = loaded(KEY.format(value="'${PASSWORD}'"), {"PASSWORD": "$ecret"})
    assert settings.models["m"].upstreams[0].options == {"api_key": "$ecret"}


def test_it_is_an_error_anywhere_in_the_settings() -> None:
    tree = {
        "listen": "$LISTEN",
        "database": "$DATABASE_URL",
        "jobs": {"workers": "$WORKERS"},
        "apps": {"newsletter": {"title": "$TITLE", "mail_to": ["$ME"]}},
    }
    with pytest.raises(InvalidSettings) as caught:
        wiring.read_settings(tree, env={})
    assert [(problem.path, problem.message.rpartition(" ")[2]) for problem in caught.value.problems] == [
        ("listen", "${LISTEN}"),
        ("database", "${DATABASE_URL}"),
        ("jobs.workers", "${WORKERS}"),
        ("apps.newsletter.title", "${TITLE}"),
        ("apps.newsletter.mail_to[0]", "${ME}"),
    ]
