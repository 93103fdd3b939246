"""What ``/metrics`` says of notifications: read from the delivery log when asked."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from mainstay.service.notifications import repository
from mainstay.service.services import Services


def collect(services: Services) -> Iterator[Metric]:
    """Messages of the delivery log by receiver and state."""
    about = "Messages in the delivery log: pending, delivered, or failed"
    family = GaugeMetricFamily("mainstay_notifications", about, labels=["receiver", "state"])
    with services.database.reading() as session:
        for (receiver, state), count in sorted(repository.count_by_state(session).items()):
            family.add_metric([receiver, state], count)
    yield family
