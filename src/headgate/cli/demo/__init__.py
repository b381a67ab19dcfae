"""`headgate demo`: a storm on real processes, told from outside, ending with a verdict."""

from headgate.cli.demo.command import command

__all__ = ["command"]
