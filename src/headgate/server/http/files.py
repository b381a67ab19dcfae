"""The process's limit of open files: raised as far as it goes, with a reserve kept back."""

import sys
from typing import Final

_LEAST_RESERVE: Final = 64


def raise_file_limit() -> int:
    """How many connections fit. Calls to upstreams, the store and the logs need files too: an eighth is theirs."""
    if sys.platform == "win32":
        return sys.maxsize
    import resource  # noqa: PLC0415 - not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):
            pass  # macOS says "unlimited" and means less: what we have is what we use.
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(1, soft - max(_LEAST_RESERVE, soft // 8))
