"""Metric families of one sample without labels."""

from __future__ import annotations

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily


def counter(name: str, about: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"mainstay_{name}", about, value=value)


def gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"mainstay_{name}", about, value=value)
