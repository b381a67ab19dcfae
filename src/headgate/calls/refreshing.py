"""What this process knows from the store, looked at again and again. While the store is away, what is known holds."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from headgate.core.errors import StoreUnavailable
from headgate.core.ports.clock import Clock

logger = logging.getLogger("headgate")
REFRESH_S: Final = 2.0
"""How long a change made elsewhere goes unnoticed, but for one look."""


async def keep_fresh(refresh: Callable[[], Awaitable[None]], clock: Clock, what: str) -> None:
    """Until it is cancelled."""
    while True:
        await clock.sleep(REFRESH_S)
        try:
            await refresh()
        except StoreUnavailable as error:
            logger.debug("%s: %s", what, error)
        except Exception:
            # Were this to end, nobody would hear of a change any more.
            logger.exception("the %s could not be read; what is known of them stays in force", what)
