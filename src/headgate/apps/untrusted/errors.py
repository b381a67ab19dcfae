"""Why something could not be parsed."""


class Unreadable(Exception):
    """The bytes are at fault: parsing them again will fail again."""


class ParserMissing(Exception):
    """A library is not installed, or cannot be imported."""


class ParserDied(Exception):
    """The parsing process ended, or stood still, for a reason that may be none of the bytes'."""
