"""Screenshots of the dashboard in ``docs/images``: ``python -m docs.generate.screenshots [NAME ...]``.

The demo, two nodes with a simulated GPU driver, and the mock service of the dashboard provide the data. The whole set
takes about ten minutes. Build the dashboard first (``make web``).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

from playwright.sync_api import Page, sync_playwright

from bench.lib_health_live import site
from mainstay.service.demo.scenario import DemoOptions, Scenario
from mainstay.service.demo.stack import JOB, Stack, free_port
from mainstay.service.demo.timeline import DemoTimeline
from tests.machine import chromium

ROOT: Final = Path(__file__).parents[2]
IMAGES: Final = ROOT / "docs" / "images"
FLAGS: Final = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
HISTORY_SECONDS: Final = 200.0
"""Time for which the simulated nodes report before a screenshot shows their charts."""
SETTLE_SECONDS: Final = 2.0
"""Time for charts and animations to finish."""


@contextmanager
def _page(url: str, token: str, size: tuple[int, int], scheme: Literal["light", "dark"] = "light") -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(chromium()), args=FLAGS)
        width, height = size
        context = browser.new_context(
            viewport={"width": width, "height": height}, base_url=url, color_scheme=scheme, reduced_motion="reduce"
        )
        if token:
            context.request.post("/v1/auth/session", data={"token": token})
        yield context.new_page()
        browser.close()


def _shoot(page: Page, path: str, name: str, text: str, *, full: bool = False, click: str = "") -> None:
    """Open ``path``, wait until ``text`` is visible, click the button ``click``, and store the image."""
    page.goto(path)
    page.get_by_text(text).first.wait_for(timeout=60_000)
    if click:
        page.get_by_role("button", name=click).first.click()
    time.sleep(SETTLE_SECONDS)
    page.screenshot(path=str(IMAGES / f"{name}.png"), full_page=full)
    sys.stdout.write(f"{name}.png\n")


def _incident(stack: Stack, **query: Any) -> dict[str, Any]:
    found: dict[str, Any] = stack.api.get("/incidents", **query)["items"][0]
    return found


def demo() -> None:
    """Store the overview and the incident of the demo, and a hang of its job."""
    with tempfile.TemporaryDirectory() as directory:
        options = DemoOptions(
            directory=Path(directory), port=free_port(), steps=4000, kill_rank=3, kill_at_step=15, seed=7
        )
        scenario = Scenario(options, DemoTimeline(), lambda: None)
        stack = scenario.stack
        try:
            scenario.start_service()
            scenario.start_training()
            scenario.kill_a_rank()
            scenario.watch_recovery()
            stack.until(lambda: _incident(stack)["state"] == "closed", 180.0, "the end of the incident")
            with _page(stack.api.url, stack.token, (1280, 800)) as page:
                _shoot(page, "/", "overview", "No active incidents.")
                _shoot(page, f"/incidents/{_incident(stack)['id']}", "incident", "First step", full=True)
            pid = next(rank["pid"] for rank in stack.api.get(f"/jobs/{JOB}")["topology"]["ranks"] if rank["rank"] == 1)
            os.kill(pid, signal.SIGSTOP)
            try:
                with _page(stack.api.url, stack.token, (1280, 900)) as page:
                    _shoot(page, f"/jobs/{JOB}?tab=progress", "progress", "No collective has completed for")
            finally:
                with contextlib.suppress(ProcessLookupError):  # the job recovers from the hang
                    os.kill(pid, signal.SIGCONT)
        finally:
            stack.close()


def nodes() -> None:
    """Store a suspect node, a lost GPU, and the XID policy."""
    with site() as here:
        hot, lost = here.add_machines(2, cards=8)
        time.sleep(HISTORY_SECONDS / 4)
        hot.fleet[3].set(temperature=88, memory_temperature=97, margin=-1, sm_clock=1300)
        hot.fleet[3].advance(throttle_hardware_thermal=4e8)
        time.sleep(HISTORY_SECONDS)
        lost.fleet[6].xid(79)
        lost.fleet[6].lose()
        api = here.stack.api
        here.stack.until(lambda: api.get("/remediations")["items"], 60.0, "a proposal")
        with _page(api.url, here.stack.token, (1240, 1000)) as page:
            _shoot(page, "/nodes/sim-00", "node", "GPU temperature", click="Load")
        with _page(api.url, here.stack.token, (1280, 780)) as page:
            _shoot(
                page, f"/incidents/{_incident(here.stack, node='sim-01')['id']}", "gpu-lost", "Remediation proposals"
            )
        with _page(api.url, here.stack.token, (1280, 900), "dark") as page:
            _shoot(page, "/policies/xid?only=evicts", "policy", "The GPU fell off the bus")


def signals() -> None:
    """Store the signals of a job with a slow rank, from the mock service."""
    port = free_port()
    command = ["node", "mock/server.mjs", "--port", str(port), "--scenario", "busy"]
    with subprocess.Popen(command, cwd=ROOT / "web", stdout=subprocess.PIPE, text=True) as mock:
        try:
            assert mock.stdout is not None
            mock.stdout.readline()
            with _page(f"http://127.0.0.1:{port}", "", (1280, 900)) as page:
                _shoot(page, "/jobs/llama-70b-pretrain?tab=signals", "signals", "Values over steps", full=True)
        finally:
            mock.terminate()


SETS: Final[dict[str, Callable[[], None]]] = {"demo": demo, "nodes": nodes, "signals": signals}

if __name__ == "__main__":
    for name in sys.argv[1:] or SETS:
        SETS[name]()
