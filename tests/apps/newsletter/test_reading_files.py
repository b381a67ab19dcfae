"""What people write by hand: lists of feeds, profiles, options, variables."""

from pathlib import Path

import msgspec
import pytest

import headgate
from headgate import wiring
from headgate.apps.newsletter.environment import Bedrock, read_environment
from headgate.apps.newsletter.feed_list import read_feeds
from headgate.apps.newsletter.options import NewsletterOptions
from headgate.apps.newsletter.profile import read_profile
from headgate.apps.newsletter.run import SAMPLES
from headgate.wiring.apps import build_apps

OPML = """<?xml version="1.0"?><opml version="2.0"><body><outline text="Folder">
<outline type="rss" text="A" xmlUrl="https://a.example/feed"/><outline text="B" xmlUrl="https://b.example/feed"/>
<outline text="A again" xmlUrl="https://a.example/feed"/></outline></body></opml>"""


def _file(folder: Path, text: str) -> Path:
    path = folder / "list"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text",
    [
        OPML,
        "- https://a.example/feed\n- url: https://b.example/feed",
        "feeds: [https://a.example/feed, https://b.example/feed]",
    ],
)
def test_a_list_is_opml_or_yaml(tmp_path: Path, text: str) -> None:
    feeds = read_feeds(_file(tmp_path, text), local=False)
    assert [feed.url for feed in feeds] == ["https://a.example/feed", "https://b.example/feed"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<opml", "no XML"),
        ("a: [", "neither OPML nor YAML"),
        ("5", "a list of addresses"),
        ("[]", "names no feed"),
        ("[5]", r"feeds\[0\]"),
        ("[/etc/passwd]", "local_feeds"),
        ("['file:/etc/passwd']", "local_feeds"),
    ],
)
def test_a_wrong_list_says_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    """A list may come from elsewhere: it names files only where that was asked for."""
    with pytest.raises(headgate.SettingsError, match=said):
        read_feeds(_file(tmp_path, text), local=False)


def test_a_local_list_names_files_beside_it(tmp_path: Path) -> None:
    feeds = read_feeds(_file(tmp_path, "[a.xml, 'file:b.xml', https://c.example/]"), local=True)
    assert [feed.name for feed in feeds] == [
        str(tmp_path / "a.xml"),
        str(tmp_path / "b.xml"),
        "https://c.example/",
    ]


def test_the_sample_profile_has_five_tiers() -> None:
    profile = read_profile(SAMPLES / "profile.yaml")
    assert list(msgspec.structs.asdict(profile.interests)) == ["max", "high", "medium", "low", "ignore"]
    assert all(msgspec.structs.astuple(profile.interests))


@pytest.mark.parametrize(
    "text", ["", "interests: {}", "interests: {top: [a]}", "interests: [a]", "{", "interests: {max: a}"]
)
def test_a_wrong_profile_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(headgate.SettingsError, match="profile"):
        read_profile(_file(tmp_path, text))


def test_a_gateway_with_the_newsletter_in_its_settings_opens(tmp_path: Path) -> None:
    settings = wiring.read_settings({"data_dir": str(tmp_path), "apps": {"newsletter": {}}}, env={})
    assert settings.apps == {"newsletter": NewsletterOptions()}
    assert [app.name for app in build_apps(settings.apps)] == ["newsletter"]


def test_every_mistake_of_the_options_is_told_at_once() -> None:
    wrong = {
        "candidates": 0,
        "most_fallbacks": 2,
        "smtp_host": "mail.example",
        "mail_to": ["nobody"],
        "selecte": 3,
    }
    with pytest.raises(headgate.InvalidSettings) as caught:
        wiring.read_settings({"apps": {"newsletter": wrong}}, env={})
    places = {problem.path for problem in caught.value.problems}
    assert places == {
        f"apps.newsletter.{name}"
        for name in ("candidates", "most_fallbacks", "smtp_host", "mail_to[0]", "selecte")
    }


@pytest.mark.parametrize("address", ["", "@", "a@", "@b", "a b@c", "a@b\n", "ä@b.example", "a@b@c"])
def test_what_is_no_address_is_found_before_a_mail_is_due(address: str) -> None:
    with pytest.raises(headgate.InvalidSettings, match="mail_from"):
        NewsletterOptions(mail_from=address)


def test_the_mail_server_s_password_never_prints() -> None:
    assert "hush" not in repr(NewsletterOptions(smtp_user="me", smtp_password="hush"))


def test_an_empty_environment_gives_the_first_design_s_defaults() -> None:
    assert read_environment({"BEDROCK_MAX_PARALLEL": " "}) == Bedrock(
        region="ap-northeast-1",
        max_parallel=5,
        request_interval_s=2.5,
        retry_base_delay_s=2.0,
        max_backoff_s=20.0,
        max_retries=4,
    )


def test_wrong_variables_are_named_together() -> None:
    with pytest.raises(headgate.InvalidSettings) as caught:
        read_environment(
            {"BEDROCK_MAX_PARALLEL": "0", "BEDROCK_MAX_RETRIES": "2.5", "BEDROCK_MAX_BACKOFF": "nan"}
        )
    assert [problem.path for problem in caught.value.problems] == [
        "BEDROCK_MAX_PARALLEL",
        "BEDROCK_MAX_BACKOFF",
        "BEDROCK_MAX_RETRIES",
    ]
