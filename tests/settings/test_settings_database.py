"""Which database is used, who may say so, and that no password of one ever shows."""

import traceback
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from settings.settings_stage import PROVIDERS, error_of, loaded, mistakes_in

from headgate.core.problems import InvalidSettings
from headgate.settings import Settings, load
from headgate.settings.database import database_mistake, shown_database
from headgate.settings.summary import summary

URL = "postgresql://me:hunter2-secret@db:5432/news"
OTHER = "postgres://other@elsewhere/news"
WANTED = "must be sqlite or a URL postgresql://…"
ENCODE = "is no URL: percent-encode what is special in a user, password or name (@ is %40, / is %2F)"
HOSTS = "must have hosts such as db, db:5432 or [::1]:5432, with ports from 1 to 65535"
PARAMETERS = "must have parameters such as sslmode=require after its ?, joined by &"
PLAIN = "must be a URL without spaces, accents and control characters: percent-encode them"


def read(tree: dict[str, Any], env: dict[str, str]) -> str:
    return load(tree, env=env, providers=PROVIDERS).database


@pytest.mark.parametrize(
    ("tree", "env", "database"),
    [
        ({}, {}, "sqlite"),
        ({"database": "sqlite"}, {}, "sqlite"),
        ({"database": URL}, {}, URL),
        ({}, {"DATABASE_URL": URL}, URL),
        ({}, {"DATABASE_URL": "sqlite"}, "sqlite"),
        ({}, {"DATABASE_URL": ""}, "sqlite"),
        ({}, {"DATABASE_URL": " \n"}, "sqlite"),
        ({}, {"database_url": URL, "HEADGATE_DATABASE": URL}, "sqlite"),
        ({"database": "sqlite"}, {"DATABASE_URL": URL}, "sqlite"),
        ({"database": OTHER}, {"DATABASE_URL": URL}, OTHER),
        ({}, {"HEADGATE__DATABASE": OTHER, "DATABASE_URL": URL}, OTHER),
        ({"database": URL}, {"HEADGATE__DATABASE": "sqlite", "DATABASE_URL": OTHER}, "sqlite"),
        ({"database": "${DATABASE_URL}"}, {"DATABASE_URL": URL}, URL),
        ({"database": "${DB}"}, {"DB": URL, "DATABASE_URL": OTHER}, URL),
        ({"database": "postgresql://me:${PW}@db/x"}, {"PW": "%40"}, "postgresql://me:%40@db/x"),
        ({}, {"DATABASE_URL": "postgresql://me:${PW}@db/x"}, "postgresql://me:${PW}@db/x"),
    ],
)
def test_the_file_goes_over_the_surroundings_and_an_override_over_both(
    tree: dict[str, Any], env: dict[str, str], database: str
) -> None:
    """A platform sets DATABASE_URL for everybody on it: it may fill a gap, never change a decision."""
    found = read(tree, env)

    assert found == database
    assert type(found) is str


def test_settings_built_in_code_do_not_look_at_the_surroundings() -> None:
    settings = Settings()

    assert load(settings, env={"DATABASE_URL": URL}, providers=PROVIDERS).database == "sqlite"


@pytest.mark.parametrize("url", ["mysql://me:hunter2@db/x", "sqlite:///news.db", "mongodb+srv://h/x"])
def test_a_foreign_database_url_is_refused_with_the_way_out(url: str) -> None:
    """Quietly writing to a file on a platform with a database would lose jobs at the next deployment."""
    scheme = url.partition("//")[0]

    assert mistakes_in("", {"DATABASE_URL": url}) == [
        f"database: {WANTED}, not {scheme}//…; set database: sqlite to leave DATABASE_URL aside (set by DATABASE_URL)"
    ]
    assert loaded("database: sqlite", {"DATABASE_URL": url}).database == "sqlite"
    assert loaded("", {"DATABASE_URL": url, "HEADGATE__DATABASE": "sqlite"}).database == "sqlite"


def test_a_mistake_of_an_override_is_not_blamed_on_the_surroundings() -> None:
    env = {"HEADGATE__DATABASE": "mysql://x", "DATABASE_URL": URL}

    assert mistakes_in("database: sqlite", env) == [
        f"database: {WANTED}, not mysql://… (set by HEADGATE__DATABASE)"
    ]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:pw@db:5432/news", "postgresql://me@db:5432/news"),
        ("postgres://me:pw@db/news", "postgres://me@db/news"),
        ("postgresql://me:p:w:@db/news", "postgresql://me@db/news"),
        ("postgresql://me:@db/news", "postgresql://me@db/news"),
        ("postgresql://:pw@db/news", "postgresql://db/news"),
        ("postgresql://me@db", "postgresql://me@db"),
        ("postgresql://", "postgresql://"),
        ("postgresql:///news", "postgresql:///news"),
        ("postgresql:///news?host=/run/pg&password=pw", "postgresql:///news"),
        ("postgresql://db?password=pw", "postgresql://db"),
        ("postgresql://db/news?", "postgresql://db/news"),
        ("postgresql://me:pw@/news", "postgresql://me@/news"),
        ("postgresql://%2Frun%2Fpg/news", "postgresql://%2Frun%2Fpg/news"),
        ("postgresql://me:pw@[::1]:5432/news", "postgresql://me@[::1]:5432/news"),
        ("postgresql://me:pw@a:1,b:65535,c/news", "postgresql://me@a:1,b:65535,c/news"),
        ("postgresql://me%40corp:p%40w%2F@db/a%2Fb", "postgresql://me%40corp@db/a%2Fb"),
    ],
)
def test_a_url_is_taken_as_it_is_and_shown_without_its_password(url: str, shown: str) -> None:
    settings = loaded(f"database: '{url}'")

    assert settings.database == url
    assert summary(settings).splitlines()[0].endswith(f", database {shown}")


@pytest.mark.parametrize(
    ("value", "mistake"),
    [
        ("5", "must be text, not 5: quote it"),
        ("null", "must be text, not null"),
        ("true", "must be text, not true: quote it"),
        ("[sqlite]", "must be text, not a list"),
        ("{url: sqlite}", "must be text, not a mapping"),
        ("''", WANTED),
        ("postgres", WANTED),
        ("me:hunter2@db/news", WANTED),
        ("SQLite", f"{WANTED}; did you mean 'sqlite'?"),
        ("sqlit", f"{WANTED}; did you mean 'sqlite'?"),
        ("' sqlite'", f"{WANTED}; did you mean 'sqlite'?"),
        ("postgresql+asyncpg://db", f"{WANTED}, not postgresql+asyncpg://…"),
        ("POSTGRESQL://db", f"{WANTED}, not POSTGRESQL://…"),
        ("postgresql:/db", WANTED),
        ("postgresql://me:hunt@er2@db/news", ENCODE),
        ("postgresql://me:hunt/er2@db/news", ENCODE),
        ("postgresql://me:12/34@db/news", ENCODE),
        ("postgresql://me:12?34@db/news", ENCODE),
        ("postgresql://me:12#34@db/news", ENCODE),
        ("postgresql://me:hunt[er2@db/news", ENCODE),
        ("postgresql://db/news?password=hunt@er2", ENCODE),
        ("postgresql://db/news#hunter2", ENCODE),
        ("postgresql://me:hunter2/news", HOSTS),
        ("postgresql://db:/news", HOSTS),
        ("postgresql://db:0/news", HOSTS),
        ("postgresql://db:65536/news", HOSTS),
        ("postgresql://db:99999999999/news", HOSTS),
        ("postgresql://db:²/news", PLAIN),
        ("postgresql://::1/news", HOSTS),
        ("postgresql://[::1/news", HOSTS),
        ("postgresql://[hunter2]/news", HOSTS),
        ("postgresql://[1]/news", HOSTS),
        ("postgresql://[127.0.0.1]/news", HOSTS),
        ("postgresql://,/news", HOSTS),
        ("postgresql://a,,b/news", HOSTS),
        ("postgresql://a:1,b:x/news", HOSTS),
        ("postgresql://db/news?hunter2", PARAMETERS),
        ("postgresql://db/news?a=1&hunter2", PARAMETERS),
        ("postgresql://db/news?=hunter2", PARAMETERS),
        ("postgresql://me:hunter2 @db/news", PLAIN),
        ("postgresql://me:hünter2@db/news", PLAIN),
        ('"postgresql://me:hunter2@db/news\\n"', PLAIN),
        ('"postgresql://me:hunter2@db\\0/news"', PLAIN),
    ],
)
def test_what_is_no_database_is_refused_without_being_quoted(value: str, mistake: str) -> None:
    assert mistakes_in(f"database: {value}") == [f"database: {mistake}"]


def test_a_variable_that_is_not_set_is_the_only_mistake_told() -> None:
    assert mistakes_in("database: 'mysql://${NOT_SET}'") == [
        "database: the environment variable NOT_SET is not set"
    ]


def test_a_key_beneath_the_database_leads_nowhere() -> None:
    assert mistakes_in("", {"HEADGATE__DATABASE__URL": URL}) == [
        "database: must be text, not a mapping (set by HEADGATE__DATABASE__URL)"
    ]
    assert mistakes_in("database: sqlite", {"HEADGATE__DATABASE__URL": URL}) == [
        "HEADGATE__DATABASE__URL: database has no parts that could be set"
    ]


@pytest.mark.parametrize(
    ("text", "env"),
    [
        ("database: {0}", {}),
        ("database: ${{DB}}", {"DB": "{0}"}),
        ("", {"DATABASE_URL": "{0}"}),
        ("", {"HEADGATE__DATABASE": "{0}"}),
        ("databse: {0}", {}),
        ("database: [{0}]", {}),
        ("database: {{url: {0}}}", {}),
        ("", {"HEADGATE__DATABASE__URL": "{0}"}),
    ],
)
@pytest.mark.parametrize(
    "password", ["hunter2-secret", "hunter2-secret@x", "x/hunter2-secret", "1/hunter2-secret"]
)
def test_no_mistake_shows_a_password(text: str, env: dict[str, str], password: str) -> None:
    """Whichever way the URL comes in, and whatever else is wrong beside it."""
    url = f"postgresql://me:{password}@db:0/news"
    error = error_of(
        f"{text.format(url)}\njobs: {{workers: 0}}", {name: value.format(url) for name, value in env.items()}
    )

    assert "hunter2" not in "".join(traceback.format_exception(error)) + repr(error.problems)


def test_neither_settings_nor_their_summary_print_a_password() -> None:
    settings = loaded("", {"DATABASE_URL": f"{URL}?password=hunter2-secret"})

    assert "hunter2" in settings.database
    assert "hunter2" not in f"{settings!r} {settings} {summary(settings)}"


def test_settings_built_in_code_refuse_a_database_without_quoting_it() -> None:
    with pytest.raises(InvalidSettings) as caught:
        Settings(database="postgresql://me:hunt@er2@db")

    assert [str(problem) for problem in caught.value.problems] == [f"database: {ENCODE}"]


@given(password=st.text(st.characters(codec="utf-8"), min_size=4, max_size=30))
def test_no_password_whatever_is_shown(password: str) -> None:
    """People forget to percent-encode: then the URL is refused, or whatever is read as the password is left out."""
    assume(password not in f"postgresql://me@db:5432/news {ENCODE} {HOSTS} {PARAMETERS} {PLAIN}")
    url = f"postgresql://me:{password}@db:5432/news"

    assert password not in (database_mistake(url) or shown_database(url))
