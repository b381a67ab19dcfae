"""What strangers wrote, parsed where it can do no harm: in processes of their own, bounded in memory and time."""

from headgate.apps.untrusted.errors import ParserDied, ParserMissing, Unreadable
from headgate.apps.untrusted.parser import Parser

__all__ = ["Parser", "ParserDied", "ParserMissing", "Unreadable"]
