"""`classify` and `RetryPolicy` as library users call them: with time and chance drawn for them."""

import random
from datetime import UTC, datetime

from headgate.core import foreign, retry
from headgate.core.failures import Failure


def classify(error: BaseException) -> Failure:
    """What kind of failure an exception is, whether ours or that of an HTTP client or SDK we know."""
    return foreign.classify(error, now=datetime.now(UTC))


class RetryPolicy(retry.RetryPolicy):
    """A retry policy that can also drive a loop of your own.

    >>> policy = RetryPolicy(max_attempts=3, first_wait_s=1.0, jitter="none")
    >>> policy.get_delay(0), policy.get_delay(1)
    (1.0, 2.0)
    """

    def should_retry(self, error: BaseException, attempt: int) -> bool:
        """Whether to try again after attempt number `attempt`, counted from 0, raised `error`."""
        return attempt + 1 < self.max_attempts and classify(error).retryable

    def get_delay(self, attempt: int) -> float:
        """Seconds to wait after attempt number `attempt`, counted from 0. Drawn anew at each call."""
        return self.backoff_s(attempt + 1, random.random())
