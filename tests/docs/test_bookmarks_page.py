"""The bookmarks page names every route, option and field there is, and its settings run."""

import dataclasses
import json
import re
from pathlib import Path

import msgspec
import yaml

from headgate import wiring
from headgate.apps.bookmarks.bookmark import Bookmark
from headgate.apps.bookmarks.options import BookmarkOptions
from headgate.apps.bookmarks.routes import AGAIN, ALL, ONE, Listing, Save

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "bookmarks.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def test_every_route_field_and_parameter_is_named() -> None:
    assert [
        path
        for path in (f"POST {ALL}", f"GET {ALL}", f"GET {ONE}", f"DELETE {ONE}", f"POST {AGAIN}")
        if path not in PAGE
    ] == []
    words = set(re.findall(r"\w+", PAGE))
    kinds = (Bookmark, Save, Listing)
    assert [
        field.name for kind in kinds for field in msgspec.structs.fields(kind) if field.name not in words
    ] == []


def test_every_option_stands_with_its_default() -> None:
    rows = dict(
        re.findall(r"^\| (`[a-z_`, ]+`) \| ([^|]+) \|", PAGE.split("## What it costs")[1], re.MULTILINE)
    )
    told = {
        name: default
        for names, defaults in rows.items()
        for name, default in zip(re.findall(r"\w+", names), defaults.split(", "), strict=True)
    }
    assert told == {
        field.name: f"`{field.default}`"
        if isinstance(field.default, str)
        else json.dumps(_plain(field.default))
        for field in dataclasses.fields(BookmarkOptions)
    }


def _plain(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def test_its_settings_are_right() -> None:
    real, simulated = (
        wiring.read_settings(yaml.safe_load(block), env={"OPENAI_API_KEY": "sk-x"}) for block in BLOCKS
    )
    assert real.apps == {"bookmarks": BookmarkOptions(model="summary")}
    assert simulated.apps == {"bookmarks": BookmarkOptions()}
