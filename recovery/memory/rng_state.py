"""The random number generators of a process: torch (CPU and CUDA), numpy's global one, Python's."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

_WORDS: Final = 624  # of a Mersenne Twister; Python appends the position as one more


class RngState:
    """Takes and puts back the state of every generator, under the names ``rng.*``."""

    def __init__(self, cuda_devices: tuple[int, ...] = ()) -> None:
        self._cuda = cuda_devices

    def describe(self) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
        yield "rng.torch", ("uint8", tuple(torch.get_rng_state().shape))
        for place, device in enumerate(self._cuda):  # the rank that takes over may have another device
            yield f"rng.cuda.{place}", ("uint8", tuple(torch.cuda.get_rng_state(device).shape))
        yield "rng.numpy", ("uint32", (_WORDS,))
        yield "rng.python", ("uint32", (_WORDS + 1,))

    def capture(self) -> tuple[dict[str, npt.NDArray[np.generic]], dict[str, Any]]:
        """Big parts as arrays by name, small ones as plain data."""
        version, words, gauss = random.getstate()
        _, key, *numpy_part = np.random.get_state()  # noqa: NPY002 - user code may draw from the global generator
        arrays: dict[str, npt.NDArray[np.generic]] = {
            "rng.torch": torch.get_rng_state().numpy(),
            "rng.numpy": np.array(key, np.uint32),
            "rng.python": np.array(words, np.uint32),
        }
        for place, device in enumerate(self._cuda):
            arrays[f"rng.cuda.{place}"] = torch.cuda.get_rng_state(device).numpy()
        return arrays, {"python": [version, gauss], "numpy": numpy_part}

    def restore(self, arrays: Mapping[str, npt.NDArray[np.generic]], small: dict[str, Any]) -> None:
        torch.set_rng_state(_tensor(arrays["rng.torch"]))
        for place, device in enumerate(self._cuda):
            torch.cuda.set_rng_state(_tensor(arrays[f"rng.cuda.{place}"]), device)
        version, gauss = small["python"]
        random.setstate((version, tuple(int(word) for word in arrays["rng.python"]), gauss))
        position, has_gauss, cached = small["numpy"]
        key = np.array(arrays["rng.numpy"], np.uint32)
        np.random.set_state(("MT19937", key, position, has_gauss, cached))  # noqa: NPY002 - as in take


def _tensor(array: npt.NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(np.array(array, np.uint8))
