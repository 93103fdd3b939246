"""Exporters to scrape: a loopback HTTP server whose answer a test changes, and texts as the two generations write them.

The texts follow the exporter's default counters and DCGM 4.6's header; values are invented.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

UUIDS = ("GPU-5fd4f087-86f3-7a43-b711-4771313afc50", "GPU-b8ec9a4a-0d2c-5a0e-8d5e-6a1f7c0b2d11")


def old_labels(index: int, host: str = "dgx-07") -> str:
    return (
        f'gpu="{index}",UUID="{UUIDS[index]}",pci_bus_id="00000000:{0x17 + index:02X}:00.0",device="nvidia{index}",'
        f'modelName="NVIDIA H100 80GB HBM3",Hostname="{host}",DCGM_FI_DRIVER_VERSION="550.90.07"'
    )


def new_labels(index: int, host: str = "dgx-07") -> str:
    return (
        f'gpu="{index}",uuid="{UUIDS[index]}",pci_bus_id="00000000:{0x17 + index:02X}:00.0",device="nvidia{index}",'
        f'modelName="NVIDIA B200",hostname="{host}"'
    )


def exposition(labels: Callable[..., str], values: dict[str, tuple[str, Any]], **more: Any) -> str:
    """Text of two cards: metric → (type, value), the second card's gauges as the first's."""
    lines = []
    for name, (kind, value) in values.items():
        lines += [f"# HELP {name} what it is", f"# TYPE {name} {kind}"]
        lines += [f"{name}{{{labels(index, **more)}}} {value}" for index in (0, 1)]
    return "\n".join(lines) + "\n"


OLD: dict[str, tuple[str, Any]] = {
    "DCGM_FI_DEV_SM_CLOCK": ("gauge", 1980),
    "DCGM_FI_DEV_MEM_CLOCK": ("gauge", 2619),
    "DCGM_FI_DEV_MEMORY_TEMP": ("gauge", 58),
    "DCGM_FI_DEV_GPU_TEMP": ("gauge", 47),
    "DCGM_FI_DEV_POWER_USAGE": ("gauge", 345.25),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("counter", 91234567890),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ("counter", 3),
    "DCGM_FI_DEV_GPU_UTIL": ("gauge", 87),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("gauge", 12),
    "DCGM_FI_DEV_XID_ERRORS": ("gauge", 0),
    "DCGM_FI_DEV_FB_FREE": ("gauge", 1000),
    "DCGM_FI_DEV_FB_USED": ("gauge", 80000),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": ("counter", 7),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": ("counter", 1),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": ("counter", 2),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("gauge", 0),
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": ("counter", 0),
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": ("gauge", 0),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("gauge", 0.873214),
    "DCGM_FI_PROF_PCIE_TX_BYTES": ("gauge", 123456),
}
NEW: dict[str, tuple[str, Any]] = {
    "DCGM_FI_DEV_SM_CLOCK": ("gauge", 1980),
    "DCGM_FI_DEV_GPU_TEMP_CELSIUS": ("gauge", 47),
    "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS": ("gauge", 58),
    "DCGM_FI_DEV_GPU_TEMP_MARGIN_CELSIUS": ("gauge", 31),
    "DCGM_FI_DEV_BOARD_POWER_WATTS": ("gauge", 345.25),
    "DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS": ("gauge", 1000),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("counter", 91234567890),
    "DCGM_FI_DEV_PCIE_REPLAY_TOTAL": ("counter", 3),
    "DCGM_FI_DEV_GPU_UTIL_RATIO": ("gauge", 0.87),
    "DCGM_FI_DEV_XID_ERROR": ("gauge", 0),
    "DCGM_FI_DEV_FB_USED": ("gauge", 80000),
    "DCGM_FI_DEV_FB_TOTAL": ("gauge", 183359),
    "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL": ("counter", 1),
    "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL": ("counter", 2),
    "DCGM_FI_DEV_ROW_REMAP_FAILED": ("gauge", 0),
    "DCGM_FI_DEV_SRAM_EXCEEDED": ("gauge", 0),
    "DCGM_FI_DEV_GPU_RECOVERY_ACTION": ("gauge", 0),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS": ("counter", 5_000_000_000),
    "DCGM_FI_DEV_NVLINK_RECOVERY_EVENT_TOTAL": ("counter", 505),
}


def old_text(host: str = "dgx-07", **changed: Any) -> str:
    values = {**OLD, **{f"DCGM_FI_DEV_{name}": (OLD.get(f"DCGM_FI_DEV_{name}", ("gauge",))[0], value)
                        for name, value in changed.items()}}  # fmt: skip
    return exposition(old_labels, values, host=host)


def new_text(host: str = "dgx-07", **changed: Any) -> str:
    values = {**NEW, **{f"DCGM_FI_DEV_{name}": ("gauge", value) for name, value in changed.items()}}
    return exposition(new_labels, values, host=host)


@dataclass
class Exporter:
    """A server on loopback. ``answer`` is a text, or a function that writes what it likes to the handler."""

    answer: str | Callable[[BaseHTTPRequestHandler], None] = ""
    asked: int = 0
    server: ThreadingHTTPServer = field(init=False)
    over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                exporter.asked += 1
                exporter.reply(self)

            def log_message(self, *_args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/metrics"

    def reply(self, handler: BaseHTTPRequestHandler) -> None:
        if callable(self.answer):
            self.answer(handler)
            return
        body = self.answer.encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def close(self) -> None:
        self.over.set()
        self.server.shutdown()
        self.server.server_close()
