"""Products in the shapes of layers: the shapes of the published model, and operations counted by shape."""

from __future__ import annotations

import pytest

from mainstay.probes.benchmarks.base import Clock, Device
from mainstay.probes.benchmarks.layer_gemm import LAYERS, LayerGemm
from mainstay.probes.benchmarks.timing import LEAST


def tiny() -> LayerGemm:
    return LayerGemm(LayerGemm.Config(budget_seconds=0.0, width=32, tokens=8))


def test_the_shapes_are_those_of_llama_3_70b() -> None:
    width = LayerGemm.gpu_sizes["width"]
    shapes = {layer: (int(inner * width), int(outer * width)) for layer, (inner, outer) in LAYERS.items()}
    assert shapes == {
        "qkv": (8192, 10240),
        "attention_out": (8192, 8192),
        "gate_up": (8192, 57344),
        "down": (28672, 8192),
        "vocabulary": (8192, 128256),
    }


@pytest.mark.slow
def test_operations_are_those_of_the_shape(cpu: Device, ticking: Clock) -> None:
    """Between two looks at this clock lies a second."""
    result = tiny().run(cpu, ticking)
    assert result.metrics[0].values == (2.0 * 8 * 32 * 40,) * LEAST
    assert result.metrics[3].values == (2.0 * 8 * 112 * 32,) * LEAST
