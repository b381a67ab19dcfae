"""One YAML file and the environment, read strictly: every mistake is reported, all of them together."""

from headgate.settings.front import Address, Limits
from headgate.settings.loading import load
from headgate.settings.reader import OptionsCheck
from headgate.settings.records import ModelSettings, Settings, UpstreamSettings

__all__ = ["Address", "Limits", "ModelSettings", "OptionsCheck", "Settings", "UpstreamSettings", "load"]
