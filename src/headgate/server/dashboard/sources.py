"""What pages are made from."""

from collections.abc import Callable
from dataclasses import dataclass

from headgate.core.ports.alerts import AlertBoard
from headgate.core.ports.clock import Clock
from headgate.gateway import Gateway
from headgate.observe.failures import RecentFailures
from headgate.observe.recent import RecentRequests
from headgate.observe.series import Series
from headgate.runner.access_keys import AccessKeys
from headgate.server.access import Access
from headgate.server.dashboard.job_look import JobLook


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """One gateway and those who listen to it."""

    gateway: Gateway
    access: Access
    recent: RecentRequests
    series: Series
    failures: RecentFailures
    clock: Clock
    alerts: AlertBoard
    keys: AccessKeys
    job_look: JobLook


def listen(
    gateway: Gateway,
    access: Access,
    recent: RecentRequests,
    clock: Clock,
    alerts: AlertBoard,
    new_id: Callable[[], str],
) -> Sources:
    """From now on what happens is counted for the pages."""
    series, failures = Series(clock.now), RecentFailures(clock.utc)
    gateway.listen(series)
    gateway.listen(failures)
    return Sources(
        gateway=gateway,
        access=access,
        recent=recent,
        series=series,
        failures=failures,
        clock=clock,
        alerts=alerts,
        keys=AccessKeys(gateway.durable, new_id),
        job_look=JobLook(gateway.jobs, clock),
    )
