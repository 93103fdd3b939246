"""A small fleet that sends what a test says, through the same route as daemons."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mainstay.probes.frame import Axis, Frame, checksum, encode
from mainstay.probes.signals import SIGNALS, WIDE_MISSING, SignalSource, catalog


def uuid_of(node: str, card: int) -> str:
    return f"GPU-{node}-{card}"


@dataclass
class Fleet:
    """Nodes of a service. ``send`` gives signals by device; what it does not name is missing."""

    service: Any
    report: dict[str, Any]
    _sequence: int = field(default=0, init=False)

    def node(self, name: str, *, cards: int = 2, model: str = "H100", like: str | None = None) -> None:
        devices = [dict(self.report["devices"][0])]
        base = {"serial": None, "uuid": None, "memory_bytes": None}
        for card in range(cards):
            hardware = {"serial": f"s-{like or name}-{card}", "uuid": uuid_of(like or name, card)}
            place = {"id": f"gpu{card}", "index": card, "kind": "gpu", "facts": {"pci": "0000:17:00.0"}}
            devices.append({"model": model, "memory_bytes": 80 * 2**30, **hardware, **place})
        devices.append({"id": "nic:mlx5_0:1", "index": 0, "kind": "nic", "model": "CX7", **base})
        said = self.service.client().put(f"/v1/nodes/{name}", json={**self.report, "devices": devices})
        assert said.status_code == 200, said.text

    def send(self, node: str, at: float | None = None, **devices: dict[str, float]) -> None:
        self._sequence += 1
        made = catalog(SignalSource.HOST, SignalSource.GPU, SignalSource.NIC)
        narrow = np.full((len(devices), len(made.narrow), 1), np.nan, "<f4")
        wide = np.full((len(devices), len(made.wide), 1), WIDE_MISSING, "<i8")
        for place, signals in enumerate(devices.values()):
            for name, value in signals.items():
                if name in made.wide:
                    wide[place, made.wide.index(name), 0] = value
                else:
                    narrow[place, made.narrow.index(name), 0] = value
        values, big = narrow.tobytes(), wide.tobytes()
        frame = Frame(
            version=1, subject=node, axis=Axis.TIME, stream="s", sequence=self._sequence,
            # Each a little later than the one before: a reading is taken for new by its time.
            t0=(time.time() if at is None else at) + self._sequence * 0.01, dt=1.0,
            catalog=made.digest, entities=tuple(devices), samples=1, crc32=checksum(values, big), values=values,
            wide=big,
        )  # fmt: skip
        answer = self.service.client().post("/v1/telemetry/frames", content=encode(frame))
        assert answer.status_code == 204, answer.text

    def add_one_of_everything(self) -> None:
        """A node whose devices report every signal, and a job on it."""
        self.node("n1")
        parts = {"host": SignalSource.HOST, "gpu0": SignalSource.GPU, "nic:mlx5_0:1": SignalSource.NIC}
        self.send(
            "n1", **{d: {n: 1.0 for n, s in SIGNALS.items() if s.source is source} for d, source in parts.items()}
        )
        self.job("train", [("n1", "gpu0")])

    def job(self, name: str, places: list[tuple[str, str | None]]) -> None:
        ranks = [
            {"rank": rank, "dp": rank, "pp": 0, "tp": 0, "node": node, "device": device, "pid": 1, "state": "running"}
            for rank, (node, device) in enumerate(places)
        ]
        body = {
            "name": name, "state": "running", "generation": 1, "command": "train.py",
            "topology": {"dp": len(ranks), "pp": 1, "tp": 1, "world_size": len(ranks), "ranks": ranks},
            "protection": {
                "slots": 2, "parity_every": None, "parity_group": None, "disk_every": None, "state_bytes": []
            },
            "steps_total": None, "last_step": 1, "started_at": 1_700_000_000.0, "finished_at": None,
        }  # fmt: skip
        answer = self.service.client().put(f"/v1/jobs/{name}", json=body)
        assert answer.status_code == 200, answer.text
