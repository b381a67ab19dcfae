"""The command line: parse, call, print. Exit code 2 means the input or the settings were wrong."""

from headgate.cli.entry import main

__all__ = ["main"]
