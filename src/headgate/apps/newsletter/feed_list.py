"""The list of feeds: OPML as readers export it, or YAML."""

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import msgspec
import yaml

import headgate


class Feed(msgspec.Struct, frozen=True):
    """An address on the web, or a file, where those are allowed."""

    url: str = ""
    path: Path | None = None

    @property
    def name(self) -> str:
        return self.url or str(self.path)


def read_feeds(file: Path, *, local: bool) -> list[Feed]:
    """The feeds of a list, each once, in its order."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise headgate.SettingsError(f"{file}: the list of feeds cannot be read: {error}") from error
    addresses = _opml(text, file) if text.lstrip().startswith("<") else _yaml(text, file)
    feeds = [_feed(address, file, local=local) for address in dict.fromkeys(addresses)]
    if not feeds:
        raise headgate.SettingsError(f"{file}: the list names no feed")
    return feeds


def _feed(address: str, file: Path, *, local: bool) -> Feed:
    if address.startswith(("http://", "https://")):
        return Feed(url=address)
    if not local:
        raise headgate.SettingsError(
            f"{file}: {address!r:.200} is no address on the web; files are read with local_feeds: true only"
        )
    return Feed(path=file.parent / address.removeprefix("file:"))


def _opml(text: str, file: Path) -> list[str]:
    try:
        root = ET.fromstring(text)  # noqa: S314 - the operator's own file
    except ET.ParseError as error:
        raise headgate.SettingsError(f"{file}: it begins like OPML and is no XML: {error}") from error
    found = (outline.get("xmlUrl", "").strip() for outline in root.iter("outline"))
    return [address for address in found if address]


def _yaml(text: str, file: Path) -> list[str]:
    try:
        tree: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise headgate.SettingsError(f"{file}: it is neither OPML nor YAML: {error}") from error
    listed = tree.get("feeds") if isinstance(tree, dict) else tree
    if not isinstance(listed, list):
        raise headgate.SettingsError(f"{file}: a list of addresses is due, at the top or under `feeds`")
    return [_address(entry, f"{file}: feeds[{index}]") for index, entry in enumerate(listed)]


def _address(entry: object, place: str) -> str:
    address = entry.get("url") if isinstance(entry, dict) else entry
    if not isinstance(address, str) or not address.strip():
        raise headgate.SettingsError(f"{place} must be an address, or have one as its `url`")
    return address.strip()
