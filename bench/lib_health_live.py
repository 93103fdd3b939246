"""Health, live: ``mainstay serve``, real node daemons on a simulated driver, a kernel log that is a FIFO, and the API.

Faults are put into the simulated driver, the kernel log or the files of a port; the clock stops when the API shows the
incident. Driver and port are simulated, everything from the sampler to the answer is real.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.report import Row
from mainstay.service.demo.processes import mainstay_command
from mainstay.service.demo.stack import Stack, free_port
from tests.fakes.fleet import FakeCard, FakeFleet, compile_fake

CARDS = 16
PORTS = 8
CODES = (48, 62, 79, 95, 119)
"""XIDs that concern a node, not its user."""
_BUSES = 14
"""Cards whose PCI bus number has two digits."""
_WAIT_S = 20.0
_POLL_S = 0.01


@dataclass
class Machine:
    """One simulated node: its cards, ports and kernel log."""

    name: str
    fleet: FakeFleet
    ports: Path
    log: int
    lines: int = 0

    def kernel(self, text: str) -> None:
        """A line as /dev/kmsg gives it."""
        self.lines += 1
        os.write(self.log, f"3,{self.lines},{time.monotonic_ns() // 1000},-;{text}\n".encode())

    def port(self, number: int, *, up: bool) -> None:
        place = self.ports / "class/infiniband" / f"mlx5_{number}" / "ports/1"
        (place / "state").write_text("4: ACTIVE\n" if up else "1: DOWN\n")
        (place / "phys_state").write_text("5: LinkUp\n" if up else "3: Disabled\n")


@dataclass
class Site:
    """The control plane and its machines."""

    stack: Stack
    library: Path
    machines: list[Machine] = field(default_factory=list)

    def add_machines(self, count: int, *, cards: int = CARDS) -> list[Machine]:
        """Start ``count`` node daemons and wait until each is heard."""
        added = [self._start(len(self.machines) + n, cards) for n in range(count)]
        self.machines += added
        for machine in added:
            self.stack.until(lambda m=machine: self._speaks(m), 60.0, f"{machine.name} to speak")  # type: ignore[misc]
        return added

    def _start(self, number: int, cards: int) -> Machine:
        name = f"sim-{number:02d}"
        place = self.stack.directory / name
        place.mkdir()
        fleet = FakeFleet.create(place / "gpus", cards=cards)
        for card in fleet.cards[:cards]:
            card.text("uuid", f"GPU-{number:08d}-0000-0000-0000-{card.number:012d}")
            card.text("serial", f"1650{number:04d}{card.number:04d}")
        for port in range(PORTS):
            write_port(place / "sys", f"mlx5_{port}")
        os.mkfifo(place / "kmsg")
        log = os.open(place / "kmsg", os.O_RDWR | os.O_NONBLOCK)
        self._daemon(name, place, {**fleet.environment(self.library), "SYSFS_PATH": str(place / "sys")})
        return Machine(name, fleet, place / "sys", log)

    def _daemon(self, name: str, place: Path, env: dict[str, str]) -> None:
        join = self.stack.api.post("/auth/tokens", {"name": f"join {name}", "kind": "join", "scopes": ["report"]})
        options = ["--service", self.stack.api.url, "--name", name, "--join-token", join["token"]]
        options += ["--data-dir", str(place / "data"), "--kernel-log", str(place / "kmsg")]
        self.stack.children.start(f"node-{name}", mainstay_command("node", *options), env)

    def _speaks(self, machine: Machine) -> bool:
        found = [n for n in self.stack.api.get("/nodes", limit=200)["items"] if n["name"] == machine.name]
        return bool(found) and len(found[0]["devices"]) > PORTS and (found[0]["age_seconds"] or 99.0) < 5

    def findings(self, machine: Machine, kinds: set[str], device: str | None = None) -> list[dict[str, Any]]:
        """Active findings about a device that an incident shows."""
        items = self.stack.api.get("/findings", node=machine.name, limit=200)["items"]
        return [
            f for f in items
            if f["kind"] in kinds and f["active"] and f["incident"] and device in {None, f["entity"]["device"]}
        ]  # fmt: skip

    def delay(self, machine: Machine, kinds: set[str], device: str, cause: Callable[[], None]) -> float | None:
        """Seconds from ``cause`` until the API shows an incident with such a finding; None when it never did."""
        began = time.monotonic()
        cause()
        while time.monotonic() - began < _WAIT_S:
            if self.findings(machine, kinds, device):
                return time.monotonic() - began
            time.sleep(_POLL_S)
        return None

    def incidents(self) -> int:
        return len(self.stack.api.get("/incidents", limit=200)["items"])

    def gaps(self, machine: Machine, cards: list[FakeCard], start: float, stop: float) -> int:
        """Seconds in which a card was not sampled although it answered."""
        missing = 0
        for card in cards:
            answer = self.stack.api.get(
                "/telemetry/query", node=machine.name, device=card.uuid, signal="gpu_temperature_celsius",
                points=4000, **{"from": int(start), "to": int(stop)},
            )  # fmt: skip
            for line in answer["series"]:
                missing += sum(value is None for value in line["mean"])
        return missing


def write_port(sys: Path, device: str) -> None:
    """The files of one port, up at 400 Gbit/s."""
    port = sys / "class/infiniband" / device / "ports/1"
    for part in ("counters", "hw_counters"):
        (port / part).mkdir(parents=True)
    (sys / "class/infiniband" / device / "hca_type").write_text("MT4129\n")
    (sys / "class/infiniband" / device / "node_guid").write_text(
        f"0000:{random.Random(device).getrandbits(16):04x}:0:1\n"
    )
    (port / "state").write_text("4: ACTIVE\n")
    (port / "phys_state").write_text("5: LinkUp\n")
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    (port / "link_layer").write_text("InfiniBand\n")
    for name in ("link_downed", "symbol_error", "port_rcv_data", "port_xmit_data"):
        (port / "counters" / name).write_text("0\n")


@contextmanager
def site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory() as directory:
        stack = Stack(Path(directory), free_port())
        try:
            stack.start_service("serve")
            yield Site(stack, compile_fake(Path(directory) / "driver"))
        finally:
            stack.close()


def quantile(values: list[float], share: float) -> float:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return cuts[round(share * 100) - 1]


def _row(claim: str, delays: list[float | None], share: float, target: float, note: str = "") -> Row:
    """A claim about a quantile; what was never seen counts as seen when we stopped looking."""
    values = [_WAIT_S if delay is None else delay for delay in delays]
    figure = quantile(values, share)
    never = sum(delay is None for delay in delays)
    texts = [
        f"median {statistics.median(values):.2f} s, slowest {max(values):.2f} s",
        f"{never} never seen" if never else "",
    ]
    return Row(
        claim=f"{claim}, p{share * 100:.0f}", figure=round(figure, 2), unit="s", target=f"<= {target:g}",
        holds=figure <= target, kind="live", n=len(values), note="; ".join(filter(None, [*texts, note])),
    )  # fmt: skip


def xid_rows(here: Site, machines: list[Machine]) -> list[Row]:
    delays: list[float | None] = []
    chance = random.Random(3)
    for machine in machines:
        for card in machine.fleet.cards[:CARDS]:
            time.sleep(chance.uniform(0.0, 0.2))
            code = chance.choice(CODES)
            kinds = {"xid", "gpu_lost", "ecc_uncorrectable", "nvlink_errors", "row_remap"}
            delays.append(here.delay(machine, kinds, card.uuid, lambda c=card, x=code: c.xid(x)))  # type: ignore[misc]
    return [_row("XID event (NVML) to incident in the API", delays, 0.99, 2.0)]


def kernel_rows(here: Site, machine: Machine) -> list[Row]:
    delays = []
    for card in machine.fleet.cards[:_BUSES]:
        pci = f"0000:{0x17 + 0x10 * card.number:02x}:00"
        text = f"NVRM: Xid (PCI:{pci}): 119, pid=2110, name=python3, Timeout waiting for RPC response from GSP"
        delays.append(here.delay(machine, {"xid"}, card.uuid, lambda line=text: machine.kernel(line)))  # type: ignore[misc]
        time.sleep(0.1)
    return [_row("XID line (kernel log) to incident in the API", delays, 0.99, 2.0)]


def lost_rows(here: Site, machines: list[Machine]) -> list[Row]:
    delays: list[float | None] = []
    missing = samples = 0
    for machine in machines:
        cards = machine.fleet.cards[:CARDS]
        broken, sound = cards[: CARDS // 2 + 2], list(cards[CARDS // 2 + 2 :])
        began = time.time()
        for number, card in enumerate(broken):
            cause = card.lose if number % 2 else card.hang
            delays.append(here.delay(machine, {"gpu_lost", "probe_unresponsive"}, card.uuid, cause))
            time.sleep(0.3)
        time.sleep(4.0)
        until = time.time() - 4.0
        missing += here.gaps(machine, sound, began, until)
        samples += len(sound) * int(until - began)
    rows = [
        _row(
            "GPU lost or driver call hung to incident",
            delays,
            0.95,
            3.0,
            f"half lost, half hung, {len(machines)} nodes",
        )
    ]
    rows.append(
        Row(
            claim="Samples of the node's other cards missing meanwhile",
            figure=missing,
            unit=f"of {samples}",
            target="0",
            holds=missing == 0,
            kind="live",
            n=samples,
        )
    )
    return rows


def slow_rows(here: Site, machines: list[Machine]) -> list[Row]:
    """Throttling, power brake, a PCIe link that trained down: under load, and not at idle."""
    faults: tuple[tuple[str, dict[str, float], dict[str, int]], ...] = (
        ("power_brake", {"throttle_power_brake": 1e9}, {}),
        ("thermal_throttle", {"throttle_hardware_thermal": 7e8}, {"temperature": 88, "margin": 0}),
        ("pcie_degraded", {}, {"pcie_width": 8}),
    )
    delays: list[float | None] = []
    for number in range(24):
        kind, growing, values = faults[number % len(faults)]
        machine = machines[number // 3 % len(machines)]
        card = machine.fleet.cards[number // (3 * len(machines)) * 3 + number % 3]

        def cause(card: FakeCard = card, growing: dict[str, float] = growing, values: dict[str, int] = values) -> None:
            card.advance(**growing)
            card.set(**values)

        delays.append(here.delay(machine, {kind}, card.uuid, cause))
    return [_row("Throttle, power brake, PCIe downtrain to incident, under load", delays, 0.95, 5.0)]


def idle_rows(here: Site, seconds: float = 60.0) -> list[Row]:
    """An idle node saves power: low clocks, PCIe generation 1, and a power brake that moved by a nanosecond."""
    machine = here.add_machines(1)[0]
    for card in machine.fleet.cards[:CARDS]:
        card.set(utilization=0, power=75_000, sm_clock=345, pcie_generation=1, temperature=33, margin=54)
        card.advance(throttle_power_brake=1.0)
    time.sleep(seconds)
    found = here.findings(machine, {"power_brake", "thermal_throttle", "pcie_degraded", "signal_outlier"})
    return [
        Row(
            claim=f"The same at idle, {seconds:.0f} s of {CARDS} cards",
            figure=len(found),
            unit="incidents' findings",
            target="0",
            holds=not found,
            kind="live",
            n=CARDS,
        )
    ]


def port_rows(here: Site, machines: list[Machine], flap_seconds: float = 30.0) -> list[Row]:
    delays = []
    for machine in machines:
        for port in range(PORTS - 1):
            cause = lambda at=machine, number=port: at.port(number, up=False)  # noqa: E731 - both are bound now
            delays.append(here.delay(machine, {"nic_degraded"}, f"nic:mlx5_{port}:1", cause))
    machine = machines[-1]
    before, flaps, until = here.incidents(), 0, time.monotonic() + flap_seconds
    while time.monotonic() < until:
        machine.port(PORTS - 1, up=flaps % 2 == 1)
        downs = machine.ports / "class/infiniband" / f"mlx5_{PORTS - 1}" / "ports/1/counters/link_downed"
        downs.write_text(f"{flaps}\n")
        flaps += 1
        time.sleep(0.05)
    time.sleep(3.0)
    more = here.incidents() - before
    return [
        _row("NIC port down to incident", delays, 0.95, 5.0),
        Row(
            claim=f"Port flaps at 10/s for {flap_seconds:.0f} s: further incidents", figure=more, unit="incidents",
            target="<= 1", holds=more <= 1, kind="live", n=flaps // 2,
        ),
    ]  # fmt: skip


def rows() -> list[Row]:
    """Everything, on one site."""
    with site() as here:
        machines = here.add_machines(7)
        made = xid_rows(here, machines)
        made += kernel_rows(here, here.add_machines(1)[0])
        made += lost_rows(here, here.add_machines(2))
        made += slow_rows(here, here.add_machines(2))
        made += idle_rows(here)
        return made + port_rows(here, here.add_machines(3))
