"""Metric families without labels."""

from __future__ import annotations

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from mainstay.service.common.histogram import Histogram


def counter(name: str, about: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"mainstay_{name}", about, value=value)


def gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"mainstay_{name}", about, value=value)


def histogram(name: str, about: str, value: Histogram) -> HistogramMetricFamily:
    buckets, total = value.read()
    return HistogramMetricFamily(f"mainstay_{name}", about, buckets=buckets, sum_value=total)
