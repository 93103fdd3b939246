"""The cards of a simulated NVIDIA driver, changed live from outside while a sampler reads them.

    library = compile_fake(directory)                        # builds libnvidia-ml.so.1; variants below
    fleet = FakeFleet.create(directory / "gpus", cards=8, personality="h100")
    subprocess.Popen([...], env={**os.environ, **fleet.environment(library)})
    fleet[3].set(temperature=91, power=690_000)              # NVML's own units: C, mW, mJ, MHz, ns, bytes, %
    fleet[3].advance(throttle_power_brake=1e9)               # a counter that now grows by so much a second
    fleet[3].link(7).advance(crc=50, recovery=0.1)           # one NVLink; see layout.LINK_VALUES
    fleet[3].xid(79); fleet[3].lose(); fleet[3].restore()    # GPU_IS_LOST from every call, until restored
    fleet[3].require_reset(); fleet[3].hang(); fleet[3].release(); fleet[3].slow(0.2)
    fleet[3].hang("nvmlDeviceGetUtilizationRates")           # only this call
    fleet[3].fails("nvmlDeviceGetFieldValues", UNKNOWN); fleet[3].field_fails(230, NOT_SUPPORTED)
    fleet[3].mig(True); fleet[3].reset_counters()
    fleet.reload_driver(); fleet.unload_driver(); fleet.load_driver(); fleet.hang(); fleet.release()
    fleet.renumber([1, 0, 2])                                # driver index -> card; shorter: a card is listed no more
    fleet.fail_wait(IS_LOST, card=3); fleet.fail_register(UNKNOWN, times=2)
    fleet.calls(), fleet.lock_milliseconds(), fleet.clear_calls(), fleet.misuse, fleet.opens

A fleet may be opened by any number of processes (``FakeFleet.open``); the library maps the same file. The personalities
``h100``, ``b200`` and ``a100`` differ in links, field numbers and limits as the real ones do. Variants of the library:
``current`` (all names), ``r535`` (newer names and field numbers >= 200 are missing), ``api13`` (deprecated names are
missing), ``minimal`` (neither the newer names nor the field batch). The lock time is *simulated*: each call adds what
``COST_NS`` says of it.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import shutil
import struct
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.fakes import layout
from tests.fakes.personalities import COMMON, PERSONALITIES

HERE: Final = Path(__file__).parent
VARIANTS: Final = {"current": (), "r535": ("-DR535",), "api13": ("-DAPI13",), "minimal": ("-DMINIMAL",)}
NOT_SUPPORTED, NO_PERMISSION, IS_LOST, RESET_REQUIRED, UNKNOWN = 3, 4, 15, 16, 999
NO_INSTANCE: Final = 0xFFFFFFFF
XID_EVENT: Final = 0x8

COST_NS: Final = {
    "nvmlInitWithFlags": 20_000_000, "nvmlDeviceGetComputeRunningProcesses_v3": 4_490_000,
    "nvmlDeviceGetMemoryInfo": 11_600, "nvmlDeviceGetMemoryInfo_v2": 11_600, "nvmlDeviceGetUtilizationRates": 2_500,
    "nvmlDeviceGetFieldValues": 50_000, "nvmlEventSetWait_v2": 0, "nvmlShutdown": 0,
}  # fmt: skip
"""Assumed time under the driver's lock by call (a few published for a consumer card, the rest guesses), others 3 us."""
_OTHER_COST_NS: Final = 3_000
_FUTEX: Final = {"x86_64": 202, "aarch64": 98}
_libc = ctypes.CDLL(None, use_errno=True)


def compile_fake(directory: Path, variant: str = "current") -> Path:
    """Build the library in ``directory``; returns that directory, for ``FakeFleet.environment``.

    Raises:
        RuntimeError: there is no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("a C compiler is needed: sudo apt-get install -y gcc")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "layout.h").write_text(layout.header())
    options = ["-shared", "-fPIC", "-O2", "-Wall", "-Werror", f"-I{directory}", "-Wl,-soname,libnvidia-ml.so.1"]
    command = [compiler, *options, *VARIANTS[variant], "-o", directory / "libnvidia-ml.so.1", HERE / "fake_nvml.c"]
    subprocess.run(command, check=True, timeout=60)
    return directory


class FakeFleet:
    """The state file. Reads and writes are single 64-bit words, so other processes see them at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8 * layout.WORDS)
        self.words = memoryview(self._map).cast("Q")
        self._futex = ctypes.c_uint32.from_buffer(self._map, 8 * layout.HEAD["futex"])
        self.cards = tuple(FakeCard(self, number) for number in range(layout.CARDS))

    @classmethod
    def create(cls, path: Path, cards: int = 8, personality: str = "h100", driver: str = "580.95.05") -> FakeFleet:
        """A fleet of healthy, busy cards. UUIDs end in the card's number: ``uuid(3)``."""
        with path.open("wb") as file:
            file.truncate(8 * layout.WORDS)
        fleet = cls(path)
        fleet._head("cards", cards)
        fleet._head("wait_error_card", layout.CARDS)
        fleet.set_text(layout.HEAD["driver"], driver)
        for number in range(layout.CARDS):
            fleet.words[layout.HEAD["order"] + number] = number
        for number, name in enumerate(layout.FUNCTIONS):
            fleet.words[layout.HEAD["cost"] + number] = COST_NS.get(name, _OTHER_COST_NS)
        for card in fleet.cards[:cards]:
            card.become(personality)
        fleet._head("magic", layout.MAGIC)
        return fleet

    @classmethod
    def open(cls, path: Path) -> FakeFleet:
        return cls(path)

    def __getitem__(self, number: int) -> FakeCard:
        return self.cards[number]

    def __len__(self) -> int:
        return self.words[layout.HEAD["cards"]]

    def environment(self, library: Path) -> dict[str, str]:
        """What a process needs in its environment to see these cards through pynvml."""
        return {"LD_LIBRARY_PATH": str(library), "MAINSTAY_FAKE_NVML": str(self.path)}

    # The driver as a whole.

    def hang(self) -> None:
        """Every call of every card blocks, for ever or until ``release``."""
        self._head("hang", 1)

    def release(self) -> None:
        self._head("hang", 0)
        for card in self.cards:
            card.release()

    def fails(self, code: int) -> None:
        """Every call but the opening fails with ``code``; 0 ends it."""
        self._head("error", code)

    def reload_driver(self, driver: str | None = None) -> None:
        """The driver was replaced: LIB_RM_VERSION_MISMATCH until the library is reopened."""
        if driver is not None:
            self.set_text(layout.HEAD["driver"], driver)
        self.words[layout.HEAD["generation"]] += 1
        self._head("unloaded", 0)
        self.ring()

    def unload_driver(self) -> None:
        """Nothing answers (DRIVER_NOT_LOADED) until ``load_driver``."""
        self._head("unloaded", 1)
        self.ring()

    def load_driver(self) -> None:
        self.reload_driver()

    def renumber(self, order: Sequence[int]) -> None:
        """Which card each driver index means, from the next opening; cards that are left out are listed no more."""
        for index, card in enumerate(order):
            self.words[layout.HEAD["order"] + index] = card
        self._head("cards", len(order))

    def fail_wait(self, code: int, *, card: int | None = None, times: int = 1) -> None:
        """The next ``times`` waits for events end at once with ``code``, naming ``card`` or no card."""
        self._head("wait_error", code)
        self._head("wait_error_card", layout.CARDS if card is None else card)
        self._head("wait_errors_left", times)
        self.ring()

    def fail_register(self, code: int, *, times: int = 1) -> None:
        self._head("register_error", code)
        self._head("register_errors_left", times)

    def delay(self, function: str, seconds: float) -> None:
        """How long each call of ``function`` sleeps."""
        self.words[layout.HEAD["delay"] + layout.FUNCTIONS.index(function)] = round(seconds * 1e9)

    def push(self, card: int, kind: int, data: int, gpu_instance: int, compute_instance: int) -> None:
        """Put an event in the queue and wake whoever waits. One process pushes at a time."""
        head = self.words[layout.HEAD["event_head"]]
        place = layout.HEAD["events"] + layout.EVENT_WORDS * (head % layout.EVENTS)
        for offset, word in enumerate((card, kind, data, gpu_instance, compute_instance)):
            self.words[place + offset] = word
        self.words[layout.HEAD["event_head"]] = head + 1
        self.ring()

    def ring(self) -> None:
        """Wake the waits for events, in every process."""
        self._futex.value = (self._futex.value + 1) % 2**32
        if (number := _FUTEX.get(platform.machine())) is not None:
            _libc.syscall(number, ctypes.byref(self._futex), 1, 2**31 - 1, None, None, 0)

    # What it was asked.

    def calls(self) -> dict[str, int]:
        """How often each function was called, over all processes and cards."""
        return {name: self.words[layout.HEAD["calls"] + n] for n, name in enumerate(layout.FUNCTIONS)}

    def lock_milliseconds(self) -> dict[str, float]:
        """Simulated time under the driver's lock by function: calls times assumed cost."""
        return {name: self.words[layout.HEAD["locked"] + n] / 1e6 for n, name in enumerate(layout.FUNCTIONS)}

    def clear_calls(self) -> None:
        for part in ("calls", "locked"):
            for number in range(len(layout.FUNCTIONS)):
                self.words[layout.HEAD[part] + number] = 0

    @property
    def misuse(self) -> int:
        """Calls with a handle of a closed library, and closings while a call was under way."""
        return self.words[layout.HEAD["misuse"]]

    @property
    def opens(self) -> int:
        """How often a process opened the library from nothing."""
        return self.words[layout.HEAD["opens"]]

    def set_text(self, place: int, text: str) -> None:
        raw = text.encode().ljust(8 * layout.TEXT_WORDS, b"\0")
        for offset, word in enumerate(struct.unpack(f"<{layout.TEXT_WORDS}Q", raw)):
            self.words[place + offset] = word

    def _head(self, name: str, word: int) -> None:
        self.words[layout.HEAD[name]] = word


def uuid(number: int) -> str:
    """The UUID of card ``number`` of a fresh fleet."""
    return f"GPU-00000000-0000-0000-0000-{number:012d}"


class _Values:
    """Values of three words: number, growth a second, since when."""

    def __init__(self, fleet: FakeFleet, sequence: int, place: int, names: Sequence[str]) -> None:
        self._fleet, self._sequence, self._place, self._names = fleet, sequence, place, names

    def set(self, **values: int) -> None:
        """Set values; one that grew stands still from now on."""
        for name, number in values.items():
            self._write(name, number, 0.0)

    def advance(self, **per_second: float) -> None:
        """Let counters grow by themselves from what they are now; 0 stops one."""
        for name, rate in per_second.items():
            self._write(name, self.get(name), rate)

    def increase(self, **amounts: int) -> None:
        for name, amount in amounts.items():
            self._write(name, self.get(name) + amount, self._read(name)[1])

    def get(self, name: str) -> int:
        number, rate, since = self._read(name)
        return number + int(rate * (time.monotonic_ns() - since) * 1e-9)

    def _at(self, name: str) -> int:
        return self._place + layout.VALUE_WORDS * self._names.index(name)

    def _read(self, name: str) -> tuple[int, float, int]:
        raw = struct.pack("<3Q", *self._fleet.words[self._at(name) : self._at(name) + layout.VALUE_WORDS])
        number, rate, since = struct.unpack("<qdQ", raw)
        return number, rate, since

    def _write(self, name: str, number: int, rate: float) -> None:
        words, at = self._fleet.words, self._at(name)
        new = struct.unpack("<3Q", struct.pack("<qdQ", number, rate, time.monotonic_ns()))
        words[self._sequence] += 1  # odd: being written
        words[at], words[at + 1], words[at + 2] = new
        words[self._sequence] += 1


class FakeCard(_Values):
    """One card; ``number`` stays with it when the driver renumbers the cards. Values: ``layout.VALUES``."""

    def __init__(self, fleet: FakeFleet, number: int) -> None:
        self._base = layout.HEAD["end"] + number * layout.CARD["end"]
        super().__init__(fleet, self._base, self._base + layout.CARD["values"], layout.VALUES)
        self.number = number

    @property
    def uuid(self) -> str:
        place = self._base + layout.CARD["uuid"]
        raw = struct.pack(f"<{layout.TEXT_WORDS}Q", *self._fleet.words[place : place + layout.TEXT_WORDS])
        return raw.rstrip(b"\0").decode()

    def become(self, personality: str) -> None:
        """Set everything to a healthy, busy card of that model."""
        spec = PERSONALITIES[personality]
        texts = {key: spec.get(key, "") for key in ("name", "vbios", "inforom", "chassis")}
        texts |= {"uuid": uuid(self.number), "serial": f"16500{self.number:08d}"}
        texts["pci"] = f"00000000:{0x17 + 0x10 * self.number:02X}:00.0"
        for key, text in texts.items():
            self.text(key, text)
        self._word("event_mask", spec["event_mask"])
        self.set(**dict.fromkeys(layout.VALUES, 0))
        self.set(**COMMON, **spec["values"])
        for link in range(spec["values"]["links"]):
            self.link(link).set(state=1)
        self.field_fails(range(layout.FIELDS), 0)
        self.field_fails(spec["missing_fields"], NOT_SUPPORTED)
        for function in layout.FUNCTIONS:
            self.fails(function, 0)
        for function in spec["missing_calls"]:
            self.fails(function, NOT_SUPPORTED)

    def text(self, key: str, value: str) -> None:
        """Set one of ``layout.TEXTS``; empty: NOT_SUPPORTED."""
        self._fleet.set_text(self._base + layout.CARD[key], value)

    def link(self, number: int) -> _Values:
        """One NVLink: ``set``, ``advance``, ``add``, ``get`` of ``layout.LINK_VALUES`` (state: 1 up, 0 down)."""
        place = self._base + layout.CARD["link_values"] + number * layout.VALUE_WORDS * len(layout.LINK_VALUES)
        return _Values(self._fleet, self._base, place, layout.LINK_VALUES)

    # What may go wrong.

    def lose(self) -> None:
        """It fell off the bus: every call says GPU_IS_LOST."""
        self._word("error", IS_LOST)

    def require_reset(self) -> None:
        """Every call says RESET_REQUIRED."""
        self._word("error", RESET_REQUIRED)

    def restore(self) -> None:
        self._word("error", 0)

    def hang(self, function: str | None = None) -> None:
        """Calls (or calls of one function) block for ever, or until ``release``."""
        self._word("hang", 1 if function is None else 2 + layout.FUNCTIONS.index(function))

    def release(self) -> None:
        self._word("hang", 0)

    def slow(self, seconds: float) -> None:
        """How long every call of this card sleeps."""
        self._word("latency", round(seconds * 1e9))

    def fails(self, function: str, code: int) -> None:
        """Calls of ``function`` return ``code``; 0 ends it."""
        self._fleet.words[self._base + layout.CARD["call_errors"] + layout.FUNCTIONS.index(function)] = code

    def field_fails(self, fields: int | Iterable[int], code: int) -> None:
        for field in (fields,) if isinstance(fields, int) else fields:
            self._fleet.words[self._base + layout.CARD["field_errors"] + field] = code

    def mig(self, on: bool) -> None:
        """MIG mode: no utilization and no remapped rows of the whole card."""
        self.set(mig_mode=int(on))
        self.fails("nvmlDeviceGetUtilizationRates", NOT_SUPPORTED if on else 0)

    def reset_counters(self) -> None:
        """Volatile counters start again from zero, as after a driver reload or a reset; what grew stands still."""
        volatile = [name for name in layout.VALUES if name.startswith("throttle_")]
        volatile += ["energy", "ecc_corrected", "ecc_uncorrected", "pcie_replays", "pcie_recoveries"]
        volatile += ["pcie_correctable", "pcie_nonfatal", "pcie_fatal", "pcie_receive_bytes", "pcie_transmit_bytes"]
        self.set(**dict.fromkeys(volatile, 0))
        for number in range(self.get("links")):
            self.link(number).set(**{name: 0 for name in layout.LINK_VALUES if name != "state"})

    def xid(self, code: int, *, gpu_instance: int = NO_INSTANCE, compute_instance: int = NO_INSTANCE) -> None:
        """An XID through the event set; lost to whoever has not registered."""
        self.event(XID_EVENT, code, gpu_instance=gpu_instance, compute_instance=compute_instance)

    def event(
        self, kind: int, data: int = 0, *, gpu_instance: int = NO_INSTANCE, compute_instance: int = NO_INSTANCE
    ) -> None:
        """Any NVML event by its bit."""
        self._fleet.push(self.number, kind, data, gpu_instance, compute_instance)

    def supports_events(self, mask: int) -> None:
        self._word("event_mask", mask)

    def _word(self, name: str, word: int) -> None:
        self._fleet.words[self._base + layout.CARD[name]] = word
