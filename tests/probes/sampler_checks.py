"""What every sampler must do, run on one: ``python tests/probes/sampler_checks.py NAME``, in the caller's environment.

Prints ``supported`` or ``unsupported: why`` when all checks passed; a check that fails raises.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Callable, Mapping

from mainstay.probes.core_types import validate_name
from mainstay.probes.sample_collector import SampleCollector
from mainstay.probes.samplers.base import Readings, Sampler, SamplerConfig, Support, registry
from mainstay.probes.samplers.protocol import Message, SamplerHello, SampleRow
from mainstay.probes.signals import SIGNALS, SignalKind

Check = Callable[[type[SamplerConfig]], object]
SAMPLES = 5
BUDGET_S = 0.02
"""Two per cent of a core at 1 Hz; a sampler has to leave room for the others."""


def samples(sampler: Sampler) -> list[Mapping[str, Readings]]:
    taken = []
    for n in range(SAMPLES):
        taken.append(sampler.sample(1000.0 + n))
        time.sleep(0.02)  # a kernel counts processor time in hundredths of a second
    return taken


def config_is_plain_data_with_defaults(config: type[SamplerConfig]) -> None:
    assert dataclasses.is_dataclass(config)
    assert config() == config(), "two configurations with the same settings are the same"
    try:
        config().surplus = 1  # type: ignore[attr-defined]  # that is the point
    except (AttributeError, TypeError):
        return
    raise AssertionError("a configuration must be frozen")


def it_is_called_what_its_module_is_called(config: type[SamplerConfig]) -> None:
    sampler = config().build()
    assert config.__module__ == f"mainstay.probes.samplers.{sampler.name}"
    sampler.close()


def building_touches_nothing(config: type[SamplerConfig]) -> None:
    """The best of five: this host may be busy, an opened device is slow each time."""
    seconds = list[float]()
    for _ in range(5):
        started = time.perf_counter()
        config().build()
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.05


def support_is_explained_and_may_be_asked_again(config: type[SamplerConfig]) -> None:
    sampler = config().build()
    first, second = sampler.supported(), sampler.supported()
    assert first == second
    assert isinstance(first, Support)
    assert first.ok or len(first.reason) > 10, "a machine where it cannot work must be told why"
    assert first.ok == bool(sampler.devices()) or not first.ok
    sampler.close()


def devices_are_legal_distinct_and_in_order(config: type[SamplerConfig]) -> None:
    sampler = config().build()
    supported = sampler.supported().ok
    devices = sampler.devices()
    assert not supported or devices
    assert len({validate_name(device.id, "device") for device in devices}) == len(devices)
    assert [device.index for device in devices] == sorted(device.index for device in devices)
    assert all(device.model for device in devices)
    sampler.close()


def samples_speak_of_its_devices_and_signals_only(config: type[SamplerConfig]) -> None:
    sampler = config().build()
    supported = sampler.supported().ok
    ids = {device.id for device in sampler.devices()}
    for sample in samples(sampler):
        assert set(sample) <= ids
        for readings in sample.values():
            assert all(SIGNALS[name].source is sampler.source for name in readings)
            assert readings or not supported, "where it is supported something can be read"
    sampler.close()


def values_are_plausible_and_counters_never_step_back(config: type[SamplerConfig]) -> None:
    sampler = config().build()
    sampler.supported()
    before: dict[tuple[str, str], float] = {}
    for sample in samples(sampler):
        for device, readings in sample.items():
            for name, value in readings.items():
                signal = SIGNALS[name]
                assert math.isfinite(value), f"{name}: leave out what cannot be read"
                assert signal.low <= value <= signal.high, f"{name} = {value}"
                if signal.kind is SignalKind.COUNTER:
                    assert value == int(value) >= before.get((device, name), 0), name
                    before[device, name] = value
    sampler.close()


def closing_is_harmless_and_sampling_opens_again(config: type[SamplerConfig]) -> None:
    sampler = config().build()
    sampler.close()
    supported = sampler.supported().ok
    sampler.sample(1.0)
    sampler.close()
    sampler.close()
    again = sampler.sample(2.0)
    assert bool(again) == supported
    sampler.close()


def its_rows_have_the_shape_that_it_announced(config: type[SamplerConfig]) -> None:
    said: list[Message] = []
    board = SampleCollector([config().build()], said.append)
    board.sample(1.0)
    board.sample(2.0)
    (hello,) = [message for message in said if isinstance(message, SamplerHello)]
    rows = [message for message in said if isinstance(message, SampleRow)]
    assert [row.t for row in rows] == [1.0, 2.0]
    for row in rows:
        assert len(row.values) == 4 * len(hello.devices) * len(hello.catalog.narrow)
        assert len(row.wide) == 8 * len(hello.devices) * len(hello.catalog.wide)


def it_stays_within_its_budget(config: type[SamplerConfig]) -> None:
    sampler = config().build()
    sampler.supported()
    sampler.sample(0.0)
    started = time.process_time()
    for n in range(20):
        sampler.sample(1.0 + n)
    assert (time.process_time() - started) / 20 < BUDGET_S
    sampler.close()


CHECKS: tuple[Check, ...] = (
    config_is_plain_data_with_defaults,
    it_is_called_what_its_module_is_called,
    building_touches_nothing,
    support_is_explained_and_may_be_asked_again,
    devices_are_legal_distinct_and_in_order,
    samples_speak_of_its_devices_and_signals_only,
    values_are_plausible_and_counters_never_step_back,
    closing_is_harmless_and_sampling_opens_again,
    its_rows_have_the_shape_that_it_announced,
    it_stays_within_its_budget,
)


def main(name: str) -> None:
    config = registry()[name]
    for check in CHECKS:
        check(config)
    support = config().build().supported()
    print("supported" if support.ok else f"unsupported: {support.reason}")


if __name__ == "__main__":
    main(sys.argv[1])
