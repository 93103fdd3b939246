"""What the service knows of a job that another launcher starts: where its ranks are, and why none of them can move.

Rank 0 reports if ``MAINSTAY_SERVICE`` names the service and ``MAINSTAY_SERVICE_TOKEN_FILE`` a file with a token of the
job. Findings about its nodes then name the job, and its page says what it cannot do: torchrun starts all ranks again or
none.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from mainstay.probes.data_dir import read_secret
from mainstay.probes.transport import Backoff, RejectedError, RetryableError, Transport
from mainstay.recovery.job_request import JobRequestResult, RequestKind, RequestState, read

log = logging.getLogger("mainstay.adapters")

SECONDS: Final = 5.0
"""Between two reports."""
_LAST_SECONDS: Final = 2.0
"""How long the end of training waits for the last report."""
_UNKNOWN: Final = {"device": None, "pid": None, "state": "running"}
OBSTACLE: Final = (
    "its launcher, torchrun or another one, starts all ranks or none. Restart the job without the node: it resumes "
    "from memory. Under mainstay run, ranks can move"
)


class JobReporter:
    """One a job, in rank 0.

    Args:
        transport: as ``find_service`` gives it; closed when the job has ended.
        job: id of the job.
        topology: where its ranks are.
        generation: which start of the ranks this is.
        step: asked for the newest committed step.
    """

    def __init__(
        self, transport: Transport, job: str, topology: dict[str, Any], *, generation: int, step: Callable[[], int]
    ) -> None:
        self._transport = transport
        self._job = job
        self._topology = topology
        self._generation = generation
        self._step = step
        self._started_at = time.time()
        self._rejected: dict[str, JobRequestResult] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mainstay-job", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Training has ended: report that, if the service answers soon."""
        self._over.set()
        self._thread.join(_LAST_SECONDS)

    def _run(self) -> None:
        backoff = Backoff(base=1.0, cap=60.0)
        wait, logged = 0.0, ""
        while True:
            over = self._over.wait(wait)
            try:
                self._hear(self._transport.json("PUT", f"/jobs/{self._job}", self._report(over=over)))
                backoff.reset()
                wait = SECONDS
            except RejectedError as error:
                log.warning("the service refuses the job report: %s", error)
                break
            except RetryableError as error:
                if str(error) != logged:
                    logged = str(error)
                    log.warning("the job is not reported now: %s", error)
                wait = backoff.next()
            if over:
                break
        self._transport.close()

    def _hear(self, answer: Any) -> None:
        """Requests to the job are answered: none can be carried out."""
        for request in read(answer):
            self._rejected[request.id] = JobRequestResult(id=request.id, state=RequestState.REJECTED, detail=OBSTACLE)

    def _report(self, *, over: bool) -> dict[str, Any]:
        return {
            "name": self._job,
            "state": "finished" if over else "running",
            "generation": self._generation,
            "command": sys.orig_argv,
            "topology": self._topology,
            "protection": {
                "slots": 2, "parity_every": None, "parity_group": None, "disk_every": None, "state_bytes": [],
            },
            "steps_total": None,
            "last_step": self._step(),
            "started_at": self._started_at,
            "finished_at": time.time() if over else None,
            "requests": msgspec.to_builtins([*self._rejected.values()]),
            "request_obstacles": dict.fromkeys((kind.value for kind in RequestKind), OBSTACLE),
        }  # fmt: skip


def find_service(environ: Mapping[str, str] = os.environ) -> Transport | None:
    """The way to the service; None: none is configured, or a line in the log says why it cannot be used."""
    url = environ.get("MAINSTAY_SERVICE", "")
    if not url:
        return None
    file = environ.get("MAINSTAY_SERVICE_TOKEN_FILE", "")
    try:
        return Transport(url, read_secret(Path(file)) if file else "")
    except (OSError, ValueError) as error:
        log.warning("the job is not reported to MAINSTAY_SERVICE=%s: %s", url, error)
        return None


def topology(nodes: Sequence[str], replicas: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Where each rank is. Which dimension splits the model is not known here: it stands as ``tp``.

    Args:
        nodes: node of each rank.
        replicas: by rank, who else holds the same state. Where their numbers differ, none counts.
    """
    groups = sorted({tuple(sorted({rank, *others})) for rank, others in enumerate(replicas)})
    if len({len(group) for group in groups}) != 1 or sum(map(len, groups)) != len(nodes):
        groups = [(rank,) for rank in range(len(nodes))]
    place = {rank: (dp, tp) for tp, group in enumerate(groups) for dp, rank in enumerate(group)}
    ranks = [
        {"rank": rank, "dp": place[rank][0], "pp": 0, "tp": place[rank][1], "node": node, **_UNKNOWN}
        for rank, node in enumerate(nodes)
    ]
    dp = len(groups[0])
    return {"dp": dp, "pp": 1, "tp": len(groups), "world_size": len(nodes), "ranks": ranks, "standbys": {}}
