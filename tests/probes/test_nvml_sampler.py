"""The NVML sampler, through the real pynvml, against a driver compiled for the purpose (``fake_nvml.c``)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
UUIDS = [f"GPU-00000000-0000-0000-0000-0000000000{n:02}" for n in range(2)]
DRIVE = """
import ctypes, json, logging, pathlib, sys
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
from probes.samplers.nvml import NvmlConfig
sampler = NvmlConfig().build()
support = sampler.supported()
for line in sys.stdin:
    t, state = line.split(maxsplit=1)
    pathlib.Path(sys.argv[1]).write_text(state)
    print(json.dumps({str(k): dict(v) for k, v in sampler.sample(float(t)).items()}))
print(json.dumps({
    "support": [support.ok, support.reason],
    "devices": [[d.id, d.index, d.kind, d.model, d.serial, d.uuid, d.memory_bytes] for d in sampler.devices()],
    "ecc_calls": ctypes.CDLL("libnvidia-ml.so.1").fake_ecc_calls(),
}))
"""
GOOD = "40 -1 0 0"


def world(directory: Path, *flags: str) -> dict[str, str]:
    """A directory with our own libnvidia-ml.so.1 in it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "a C compiler is needed: sudo apt-get install -y gcc"
    library = directory / "libnvidia-ml.so.1"
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", *flags, "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run([compiler, *options, "-o", library, HERE / "fake_nvml.c"], check=True, timeout=60)
    state = directory / "state"
    state.write_text(GOOD)
    return {"LD_LIBRARY_PATH": str(directory), "FAKE_NVML": str(state)}


def drive(
    directory: Path, *steps: str, flags: tuple[str, ...] = ()
) -> tuple[list[dict[str, Any]], dict[str, Any], str]:
    """Sample once per step (``"t state…"``): what each gave, the sampler's last words, and its log."""
    environment = world(directory, *flags)
    done = subprocess.run(
        [sys.executable, "-c", DRIVE, environment["FAKE_NVML"]], input="\n".join(steps) + "\n", cwd=HERE.parents[1],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *samples, last = [json.loads(line) for line in done.stdout.splitlines()]
    return samples, last, done.stderr


def test_identity_and_values_in_the_units_of_the_table(tmp_path: Path) -> None:
    (sample,), last, _ = drive(tmp_path, f"1 {GOOD}")
    assert last["support"] == [True, ""]
    assert last["devices"] == [
        [UUIDS[0], 0, "gpu", "Fake H100", "16500000000", UUIDS[0], 80_000_000_000],
        [UUIDS[1], 1, "gpu", "Fake H100", None, UUIDS[1], 80_000_000_000],
    ]
    expected = {
        "gpu_utilization_ratio": 0.75,
        "gpu_memory_used_bytes": 2000,
        "gpu_temperature_celsius": 40,
        "gpu_memory_temperature_celsius": 55,
        "gpu_power_watts": 345.6,
        "gpu_sm_clock_hertz": 1.98e9,
        "gpu_memory_clock_hertz": 2.619e9,
        "gpu_throttle_reasons": 8,
        "gpu_energy_millijoules_total": 2**40,
        "gpu_pcie_replay_total": 3,
    }
    assert sample == {uuid: pytest.approx(expected) for uuid in UUIDS}


def test_an_old_driver_is_read_through_the_old_names(tmp_path: Path) -> None:
    (_, sample), _, _ = drive(tmp_path, f"1 {GOOD}", f"2 {GOOD}", flags=("-DOLD",))
    readings = sample[UUIDS[0]]
    assert readings["gpu_temperature_celsius"] == 40
    assert readings["gpu_memory_used_bytes"] == 1000
    assert readings["gpu_throttle_reasons"] == 4
    assert readings["gpu_power_watts"] == 111
    assert readings["gpu_energy_millijoules_total"] == 5000
    assert readings["gpu_pcie_replay_total"] == 6
    assert "gpu_memory_temperature_celsius" not in readings, "there is no other way to read it"


def test_what_is_not_supported_is_left_out_and_not_asked_again(tmp_path: Path) -> None:
    samples, last, log = drive(tmp_path, *(f"{n} {GOOD}" for n in range(5)))
    assert all("gpu_ecc_corrected_total" not in sample[uuid] for sample in samples for uuid in UUIDS)
    assert last["ecc_calls"] == 4, "two signals of two cards, once each: every call takes the driver's lock"
    assert "ERROR" not in log


def test_a_lost_card_is_unknown_and_the_other_goes_on(tmp_path: Path) -> None:
    (before, during, still, after), _, log = drive(tmp_path, f"1 {GOOD}", "2 41 1 0 0", "3 42 1 0 0", "100 43 -1 0 0")
    assert before[UUIDS[1]]
    assert during[UUIDS[1]] == still[UUIDS[1]] == {}
    assert [during[UUIDS[0]]["gpu_temperature_celsius"], still[UUIDS[0]]["gpu_temperature_celsius"]] == [41, 42]
    assert after[UUIDS[1]]["gpu_temperature_celsius"] == 43, "opened again after a while, as a reset needs"
    assert log.count(f"{UUIDS[1]} is lost") == 1, "said once"


def test_a_driver_that_was_replaced_is_opened_again(tmp_path: Path) -> None:
    (before, during, after), _, log = drive(tmp_path, f"1 {GOOD}", "2 40 -1 0 1", f"3 {GOOD}")
    assert during == {uuid: {} for uuid in UUIDS}, "known devices, unknown values"
    assert set(after[UUIDS[0]]) == set(before[UUIDS[0]])
    assert "opening the library again" in log


def test_without_a_driver_it_says_so() -> None:
    code = "from probes.samplers.nvml import NvmlConfig; print(NvmlConfig().build().supported().reason)"
    environment = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=HERE.parents[1], capture_output=True, text=True, check=True
    )
    assert Path("/proc/driver/nvidia").exists() or "the NVIDIA driver does not answer" in done.stdout
