"""Whom the newsletter is for: interests in five tiers, from YAML."""

from pathlib import Path
from typing import Final

import msgspec
import yaml

import headgate

_SHAPE: Final = (
    "It has `interests` with lists of topics under max, high, medium, low and ignore; `reader`; `language`."
)


class Tiers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Topics, from what is always wanted to what never is."""

    max: tuple[str, ...] = ()
    high: tuple[str, ...] = ()
    medium: tuple[str, ...] = ()
    low: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reader, as the judge is told of them."""

    interests: Tiers
    reader: str = "a busy software engineer"
    language: str = "English"
    """Summaries are written in it."""

    def words(self) -> str:
        tiers = msgspec.structs.asdict(self.interests)
        return "\n".join(f"- {tier}: {'; '.join(topics) or 'nothing'}" for tier, topics in tiers.items())


def read_profile(file: Path) -> Profile:
    try:
        profile = msgspec.convert(yaml.safe_load(file.read_text(encoding="utf-8-sig")), Profile)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise headgate.SettingsError(f"{file}: the profile cannot be used: {error}. {_SHAPE}") from error
    if not any(msgspec.structs.astuple(profile.interests)):
        raise headgate.SettingsError(f"{file}: the profile has no interests. {_SHAPE}")
    return profile
