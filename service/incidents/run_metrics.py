"""Metrics of running jobs: progress, findings, and detectors that abstain.

Cardinality: three series a job, and one more for each kind of finding that holds (at most as many as there are kinds);
jobs that do not run vanish.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from sqlalchemy import func, select

from mainstay.detectors.base import DetectorState
from mainstay.service.common.db import AnySession
from mainstay.service.incidents.models import FindingRow
from mainstay.service.incidents.runs import MAX_RUNS
from mainstay.service.jobs.models import JobRow
from mainstay.service.jobs.repository import LIVE
from mainstay.service.services import Services


def collect_runs(services: Services) -> Iterator[Metric]:
    """Running jobs, the newest ``MAX_RUNS``."""
    with services.database.reading() as session:
        jobs = _running(session)
        yield _findings(session, jobs)
    yield _quiet(services, jobs)
    yield _abstaining(services, jobs)


def _quiet(services: Services, jobs: Sequence[str]) -> Metric:
    family = GaugeMetricFamily(
        "mainstay_job_last_progress_age_seconds",
        "Seconds since any rank of the job ended a step or a collective",
        labels=["job"],
    )
    now = services.clock.now()
    for job in jobs:
        heard = services.progress.moved(job)
        if heard is not None and math.isfinite(heard[1]):
            family.add_metric([job], max(0.0, now - heard[1]))
    return family


def _abstaining(services: Services, jobs: Sequence[str]) -> Metric:
    family = GaugeMetricFamily(
        "mainstay_job_detectors_abstaining",
        "Detectors that do not evaluate the job because the data is too noisy or they failed",
        labels=["job"],
    )
    for job in jobs:
        told = services.accounts.job_account(job).detectors
        if told:
            family.add_metric([job], sum(account.state is DetectorState.ABSTAINING for _, account in told))
    return family


def _running(session: AnySession) -> list[str]:
    statement = select(JobRow.id).where(LIVE).order_by(JobRow.started_at.desc(), JobRow.id.desc())
    return sorted(session.scalars(statement.limit(MAX_RUNS)))


def _findings(session: AnySession, jobs: Sequence[str]) -> Metric:
    family = GaugeMetricFamily(
        "mainstay_job_findings_active", "Findings about a job that hold, by kind", labels=["job", "kind"]
    )
    statement = (
        select(FindingRow.job, FindingRow.kind, func.count())
        .where(FindingRow.active, FindingRow.job.in_(jobs))
        .group_by(FindingRow.job, FindingRow.kind)
        .order_by(FindingRow.job, FindingRow.kind)
    )
    for job, kind, count in session.execute(statement):
        family.add_metric([str(job), kind], count)
    return family
