"""One value of a node's GPUs beside the signals of its host: that of its hottest, slowest, or idlest GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import Array

_Reduce = Callable[..., Array]
EXTREMES: dict[str, _Reduce] = {
    # GPUs of a job do alike, so the one that differs most in the bad direction stands for all.
    "gpu_temperature_celsius": np.fmax.reduce,
    "gpu_memory_temperature_celsius": np.fmax.reduce,
    "gpu_memory_used_bytes": np.fmax.reduce,
    "gpu_utilization_ratio": np.fmin.reduce,
    "gpu_power_watts": np.fmin.reduce,
    "gpu_sm_clock_hertz": np.fmin.reduce,
}


def gpu_rows(hosts: Sequence[str | None], owners: Sequence[str | None]) -> npt.NDArray[np.intp]:
    """[host, most GPUs of a host] rows of each host's GPUs in ``owners``, the node of each GPU; -1 = no more."""
    place = {node: row for row, node in enumerate(hosts)}
    of_host = np.array([place.get(node, len(hosts)) for node in owners], np.intp)
    order = np.argsort(of_host, kind="stable")
    counts = np.bincount(of_host, minlength=len(hosts) + 1)
    number = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = np.full((len(hosts) + 1, int(counts[:-1].max(initial=0))), -1, np.intp)
    own = of_host[order] < len(hosts)
    rows[of_host[order][own], number[own]] = order[own]
    return rows[:-1]


def extremes(signals: Sequence[str], x: Array, rows: npt.NDArray[np.intp]) -> Array:
    """[T, signal, host] of ``x`` [T, signal, GPU], each as ``EXTREMES`` says; NaN where no GPU of the host has any."""
    padded = np.concatenate([x, np.full((*x.shape[:2], 1), np.nan, x.dtype)], axis=2)
    out = np.full((len(x), len(signals), len(rows)), np.nan, x.dtype)
    for number, name in enumerate(signals):
        if rows.shape[1]:
            out[:, number] = EXTREMES[name](padded[:, number][:, rows], axis=-1)
    return out
