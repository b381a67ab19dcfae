"""The application as it is mounted: its task and its routes."""

from collections.abc import Sequence

import headgate
from headgate.apps.articles.desk import Desk
from headgate.apps.articles.now import Now
from headgate.apps.articles.options import Options
from headgate.apps.articles.shapes import ROUTE, Queued, Summarize, Summarized, SummarizeLater, SummaryStatus
from headgate.apps.articles.task import summarize_task


def app(options: Options) -> headgate.App:
    def routes(gateway: headgate.Gateway) -> Sequence[headgate.AppRoute]:
        now, desk = Now(gateway, options), Desk(gateway, options)
        return [
            headgate.AppRoute(
                method="POST",
                path=ROUTE,
                handle=now.summarize,
                body=Summarize,
                summary="Summarise an article and wait for it",
                keyed=headgate.AppKeyed.REFUSED,
                answers={200: Summarized},
                streams=True,
                waits=True,
            ),
            headgate.AppRoute(
                method="POST",
                path=f"{ROUTE}/queue",
                handle=desk.queue,
                body=SummarizeLater,
                summary="Summarise an article later, once",
                keyed=headgate.AppKeyed.OPTIONAL,
                answers={202: Queued},
            ),
            headgate.AppRoute(
                method="GET",
                path=f"{ROUTE}/status/{{job_id}}",
                handle=desk.status,
                door=headgate.AppDoor.LOOK,
                summary="How a queued summary stands",
                answers={200: SummaryStatus},
            ),
        ]

    return headgate.App(name="articles", tasks=[summarize_task(options)], routes=routes)
