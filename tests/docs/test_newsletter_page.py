"""The newsletter's page says what the code does: every option, every variable, and examples that are read."""

import dataclasses
import re
from pathlib import Path

import msgspec
import yaml

from headgate import wiring
from headgate.apps.newsletter.environment import Bedrock, read_environment
from headgate.apps.newsletter.options import NewsletterOptions
from headgate.apps.newsletter.profile import Profile

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "newsletter.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `(\w+)` \| `?([^`|]+?)`? \|", PAGE, re.MULTILINE))
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def _default(value: object) -> str:
    if value == ():
        return "none"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_every_option_is_on_the_page_with_its_default_and_no_other() -> None:
    told = {name: default for name, default in ROWS.items() if not name.startswith("BEDROCK_")}
    assert told == {field.name: _default(field.default) for field in dataclasses.fields(NewsletterOptions)}


def test_every_variable_is_on_the_page_with_its_default() -> None:
    told = {name: default for name, default in ROWS.items() if name.startswith("BEDROCK_")}
    assert len(told) == len(dataclasses.fields(Bedrock))
    assert read_environment({name: value for name, value in told.items() if value != "none"}) == Bedrock()


def test_the_examples_of_the_page_are_read() -> None:
    profile, judged, mailed = (yaml.safe_load(block) for block in BLOCKS)
    assert msgspec.convert(profile, Profile).interests.max
    read = wiring.read_settings(judged, env={})
    assert read.apps["newsletter"].model in read.models
    assert (
        wiring.read_settings(mailed, env={"SMTP_PASSWORD": "hush"}).apps["newsletter"].smtp_password == "hush"
    )
