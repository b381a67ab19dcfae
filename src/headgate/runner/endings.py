"""What the end of a job brings: from a settlement to what is told of it, and to the jobs that follow."""

import logging

from headgate.core.job import Claim, Ended, FollowUps, NewJob, Settlement
from headgate.machine.context import about

logger = logging.getLogger("headgate")


def with_follow_ups(claim: Claim, settlement: Settlement, follow_ups: FollowUps) -> tuple[NewJob, ...]:
    """All jobs that are to be accepted with the settlement: the task's own, and, if it is the end, those it brings."""
    if settlement.finished_at is None:
        return settlement.follow_ups
    ended = Ended(
        id=claim.id,
        task=claim.task,
        tenant=claim.tenant,
        model=claim.model,
        state=settlement.state,
        reason=settlement.reason,
        error=settlement.error,
        error_class=settlement.error_class,
        attempts=settlement.attempts,
        generation=claim.generation,
        revivals=claim.revivals,
        result=settlement.result,
        webhook=claim.webhook,
        metadata=claim.metadata,
        batch_id=claim.batch_id,
        finished_at=settlement.finished_at,
    )
    return (*settlement.follow_ups, *follow_ups(ended))


def guarded(follow_ups: FollowUps) -> FollowUps:
    """Whoever fails to say what follows must not keep a job from ending."""

    def follow(ended: Ended) -> tuple[NewJob, ...]:
        try:
            return follow_ups(ended)
        except Exception:
            logger.exception("job %s ends without what should follow it", ended.id, extra=about(ended.id))
            return ()

    return follow
