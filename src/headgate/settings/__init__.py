"""One YAML file and the environment, read strictly: every mistake is reported, all of them together."""

from headgate.settings.front import Address, Limits
from headgate.settings.loading import DEFAULT_FILE, load
from headgate.settings.reader import OptionsCheck
from headgate.settings.records import ModelSettings, Settings, UpstreamSettings

__all__ = [
    "DEFAULT_FILE",
    "Address",
    "Limits",
    "ModelSettings",
    "OptionsCheck",
    "Settings",
    "UpstreamSettings",
    "load",
]
