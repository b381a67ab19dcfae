"""The options of a Bedrock upstream: all mistakes together, and no secret in any of them."""

import sys
from typing import Any

import pytest

from headgate.core.problems import InvalidSettings
from headgate.providers.bedrock import read_options


def problems(given: dict[str, Any], env: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(InvalidSettings) as caught:
        read_options(given, env=env or {})
    return [str(problem) for problem in caught.value.problems]


def test_the_region_comes_from_the_options_or_the_environment() -> None:
    env = {"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "us-west-2"}

    assert read_options({"region": "us-gov-west-1"}, env=env).region == "us-gov-west-1"
    assert read_options({}, env=env).region == "eu-west-1"
    assert read_options({}, env={"AWS_DEFAULT_REGION": "us-west-2"}).region == "us-west-2"


def test_the_endpoint_is_the_regions_or_the_one_given() -> None:
    assert (
        read_options({"region": "eu-west-1"}, env={}).url == "https://bedrock-runtime.eu-west-1.amazonaws.com"
    )
    assert (
        read_options({"region": "eu-west-1", "base_url": "http://vpc:81/aws"}, env={}).url
        == "http://vpc:81/aws"
    )


def test_a_missing_region_says_where_to_put_one() -> None:
    assert problems({}) == ["region: is missing; give one, such as us-east-1, or set AWS_REGION"]


@pytest.mark.parametrize("region", ["evil.test/", "us-east-1.evil", "us_east_1", 3])
def test_a_region_becomes_part_of_a_host_name(region: Any) -> None:
    assert problems({"region": region})[0].startswith("region: must be the name of a region")


def test_an_unknown_option_is_told_with_the_one_that_was_meant() -> None:
    assert "did you mean 'region'?" in problems({"regoin": "us-east-1"})[0]


def test_all_mistakes_are_told_together() -> None:
    given = {
        "region": "nowhere",
        "profile": "",
        "base_url": "ftp://x",
        "ca_file": 3,
        "headers": {"Authorization": "x", "X-Good": "y"},
        "additional_fields": {"x": object()},
    }

    paths = [problem.partition(":")[0] for problem in problems(given)]

    assert paths == [
        "region",
        "profile",
        "base_url",
        "ca_file",
        "headers.Authorization",
        "additional_fields",
    ]


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"access_key_id": "AKIA"}, "secret_access_key"),
        ({"secret_access_key": "hush"}, "access_key_id"),
        ({"session_token": "hush"}, "session_token"),
        ({"access_key_id": "AKIA", "secret_access_key": "hush", "profile": "p"}, "profile"),
        ({"access_key_id": "AKIA", "secret_access_key": "hush\n"}, "secret_access_key"),
        ({"access_key_id": "AKIA", "secret_access_key": ["hush"]}, "secret_access_key"),
        ({"headers": {"X-Key": "hush\n"}}, "headers"),
        ({"headers": "hush"}, "headers"),
        ({"base_url": "https://user:hush@x.test"}, "base_url"),
        ({"base_url": "https://x.test?key=hush"}, "base_url"),
        ({"additional_fields": ["hush"]}, "additional_fields"),
    ],
)
def test_a_mistake_with_a_secret_is_told_without_it(given: dict[str, Any], path: str) -> None:
    (problem,) = problems({"region": "us-east-1", **given})

    assert problem.startswith(f"{path}: ")
    assert "hush" not in problem


def test_a_missing_extra_is_told_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)

    assert problems({"region": "us-east-1"}) == [
        "provider: bedrock needs its extra: pip install '.[bedrock]' in a clone of Headgate"
    ]
