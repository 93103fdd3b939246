"""The distance by its definition, which the distance that judges is held against."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mainstay.detectors.base import Floats
from mainstay.detectors.statistics.similarity import Sample, _blocks, _checked, _sign
from mainstay.probes.benchmarks.result import Better


def distances(observed: Sequence[Sample], reference: Sample, better: Better) -> Floats:
    """``d+`` of each observed sample from the reference, by the definition; shape [observed], 0 <= d+ < 1.

    Raises:
        ValueError: a sample is empty, not finite or not above zero, or ``better`` is ``equal``.
    """
    sign = _sign(better)
    result = np.empty(len(observed))
    for where, cells in _blocks(observed, _checked(reference)):
        gap = np.maximum(sign * (cells.observed - cells.reference), 0.0)
        result[where] = gap @ cells.weight / cells.largest
    return result


def similarity(observed: Sample, reference: Sample, better: Better) -> float:
    """``1 - d+`` of one sample, by the definition."""
    return 1.0 - float(distances([observed], reference, better)[0])
