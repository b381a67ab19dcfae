"""Where the server is and how to be let in: good options, and mistakes told all together without secrets."""

from pathlib import Path
from typing import Any

import pytest
from contracts.provider_stage import KEY

from headgate.core.call import Format
from headgate.core.problems import InvalidSettings
from headgate.providers.openai import Auth, OpenAIOptions, read_options

LOCAL = "http://127.0.0.1:8000/v1"


def mistakes(**given: Any) -> dict[str, str]:
    with pytest.raises(InvalidSettings) as caught:
        read_options(given)
    assert KEY not in str(caught.value)
    return {problem.path: problem.message for problem in caught.value.problems}


def url(options: OpenAIOptions, shape: Format) -> str:
    target = options.target(shape)
    return f"{target.origin}{target.target}"


def headers(options: OpenAIOptions) -> str:
    return options.target(Format.CHAT).static.decode()


def test_a_key_is_all_that_openai_needs() -> None:
    options = read_options({"api_key": KEY})

    assert url(options, Format.CHAT) == "https://api.openai.com/v1/chat/completions"
    assert f"authorization: Bearer {KEY}" in headers(options)


def test_a_local_server_needs_only_its_address() -> None:
    options = read_options({"base_url": LOCAL + "/"})

    assert url(options, Format.EMBEDDINGS) == LOCAL + "/embeddings"
    assert "authorization" not in headers(options)


def test_azure_has_a_deployment_a_version_and_its_own_header() -> None:
    options = read_options(
        {
            "base_url": "https://x.openai.azure.com/openai/deployments/gpt",
            "api_key": KEY,
            "auth": "api-key",
            "query": {"api-version": "2024-10-21"},
        }
    )

    assert url(options, Format.CHAT) == (
        "https://x.openai.azure.com/openai/deployments/gpt/chat/completions?api-version=2024-10-21"
    )
    assert f"api-key: {KEY}" in headers(options)
    assert options.auth == Auth.API_KEY


def test_a_header_takes_the_place_of_ours_in_any_case() -> None:
    sent = headers(OpenAIOptions(base_url=LOCAL, headers={"USER-agent": "me"}))

    assert sent.lower().count("user-agent") == 1
    assert "user-agent: me" in sent


def test_openai_without_a_key_is_a_mistake() -> None:
    assert "${OPENAI_API_KEY}" in mistakes()["api_key"]
    assert read_options({"headers": {"Authorization": f"Bearer {KEY}"}}).api_key is None


def test_no_secret_is_in_the_repr() -> None:
    options = OpenAIOptions(
        base_url=LOCAL, api_key=KEY, headers={"X-A": "hush-hush"}, query={"sig": "also-hush"}
    )

    assert KEY not in repr(options)
    assert "hush" not in repr(options)
    assert set(options.secrets()) == {KEY, "hush-hush", "also-hush"}


def test_all_mistakes_are_told_together() -> None:
    found = mistakes(
        base_ulr=LOCAL,
        base_url="ftp://x",
        auth="basic",
        headers=["x"],
        query={"v": 1},
        ca_file="/nowhere.pem",
    )

    assert set(found) == {"base_ulr", "base_url", "auth", "headers", "query.v", "ca_file"}
    assert "did you mean 'base_url'" in found["base_ulr"]
    assert "quotes" in found["query.v"]


@pytest.mark.parametrize(
    ("base_url", "hint"),
    [
        (LOCAL + "/chat/completions", "must end before /chat/completions"),
        (LOCAL + "/embeddings/", "must end before /embeddings"),
        (LOCAL + "?api-version=1", "belongs elsewhere"),
        ("localhost:8000/v1", "http://"),
        ("http://user:pass@host/v1", "user name"),
        ("http://ho st/v1", "space"),
        (8000, "must be a URL"),
        (None, "must be a URL"),
    ],
)
def test_a_wrong_address_is_told_with_what_would_be_right(base_url: Any, hint: str) -> None:
    assert hint in mistakes(base_url=base_url, api_key=KEY)["base_url"]


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        (KEY + "\n", "line break"),
        ("", "not empty"),
        ("  ", "holds a space"),
        (12345, "must be a text"),
        (KEY + "…", "no key has"),
    ],
)
def test_a_wrong_key_is_told_without_the_key(key: Any, hint: str) -> None:
    assert hint in mistakes(api_key=key)["api_key"]


@pytest.mark.parametrize(
    ("headers", "path", "hint"),
    [
        ({"Authorization": "x"}, "headers.Authorization", "set by api_key"),
        ({"Content-Type": "text/plain"}, "headers.Content-Type", "leave it out"),
        ({"Host": "x"}, "headers", "transport itself"),
        ({"X-A": f"{KEY}\r\nX-B: 1"}, "headers", "line break"),
        ({"X A": "x"}, "headers", "no header name"),
        ({"Ä": "x"}, "headers", "no header name"),
        ({"X-A": 1}, "headers.X-A", "quotes"),
        ({1: "x"}, "headers.1", "must be a text"),
    ],
)
def test_a_wrong_header_is_told_without_its_value(headers: Any, path: str, hint: str) -> None:
    assert hint in mistakes(base_url=LOCAL, api_key=KEY, headers=headers)[path]


def test_a_file_of_authorities_must_hold_some(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing here")

    for path in (str(empty), str(tmp_path / "none.pem"), str(tmp_path)):
        assert "cannot be used" in mistakes(base_url=LOCAL, ca_file=path)["ca_file"]
    assert "must be the path" in mistakes(base_url=LOCAL, ca_file=7)["ca_file"]
