"""Metrics on a real gateway, and a page of them that can be asked for single numbers."""

import math
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from headgate.gateway import Gateway
from headgate.observe.metrics import Metrics


def metrics_of(gateway: Gateway, **options: Any) -> Metrics:
    """As the server makes them."""
    store = gateway.durable.store
    metrics = Metrics(
        models=gateway.routes.names,
        status=gateway.status,
        backlog=lambda: store.backlog(dead_since=math.inf),
        count_jobs=lambda: gateway.jobs.count(tenant=None),
        stored_bytes=store.stored_bytes,
        epoch=gateway.now,
        **options,
    )
    gateway.listen(metrics)
    store.on_trip(metrics.store_took)
    return metrics


class Page:
    """One exposition, read by Prometheus' own parser."""

    def __init__(self, text: bytes) -> None:
        self.families = list(text_string_to_metric_families(text.decode()))
        self.samples: list[Sample] = [sample for family in self.families for sample in family.samples]

    def __call__(self, name: str, **labels: str) -> float:
        """The sum over all samples of this name whose labels say so; 0 when there are none."""
        return sum(sample.value for sample in self.samples if _fits(sample, name, labels))

    def labels(self, name: str, label: str) -> set[str]:
        return {sample.labels[label] for sample in self.samples if sample.name == name}

    def has(self, name: str) -> bool:
        return any(sample.name == name for sample in self.samples)


def _fits(sample: Sample, name: str, labels: dict[str, str]) -> bool:
    return sample.name == name and all(sample.labels.get(key) == value for key, value in labels.items())


def page(metrics: Metrics) -> Page:
    return Page(metrics.exposition())
