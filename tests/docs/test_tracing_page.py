"""The page on tracing names every attribute that a span can have, and no other; its setting is one."""

import re
from pathlib import Path

import yaml

from headgate import wiring
from headgate.observe import spans

PAGE = (Path(__file__).parents[2] / "docs/howto/tracing.md").read_text(encoding="utf-8")
NAME = r"(?:gen_ai|headgate|error|http)\.[a-z_.]+"


def test_the_table_names_every_attribute_and_no_other() -> None:
    known = set(re.findall(rf'"({NAME})"', Path(spans.__file__).read_text(encoding="utf-8")))
    cells = [row.split("|")[1] for row in PAGE.splitlines() if row.startswith("| `")]

    assert {name for cell in cells for name in re.findall(rf"`({NAME})`", cell)} == known


def test_the_setting_is_read_and_told() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)

    assert wiring.read_settings(yaml.safe_load(block), env={}).tracing is True
    assert wiring.read_settings({}, env={"HEADGATE__TRACING": "true"}).tracing is True
