"""API schemas of fault localizations."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Strict

from mainstay.detectors.localize.model import LocalizationVerdict, LocalizedCulprit, PairEvidence
from mainstay.service.common.schemas import Input, Lenient, Name, Output, ShortText, Text, UnixSeconds, fields_of
from mainstay.service.localization.models import LocalizationRow, LocalizationRunState
from mainstay.service.validation.schemas import BenchmarkResultIn

MOST_NODES = 1024
Address = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:%-]{0,254}$")]
PairBenchmark = Literal["pair", "perftest_pair", "all_reduce_pair", "all_to_all_pair"]


class LocalizationCreate(Input):
    nodes: Annotated[list[Name], Field(min_length=1, max_length=MOST_NODES)]
    reason: Annotated[Text, Field(min_length=1)]
    partners: Annotated[list[Name], Field(max_length=MOST_NODES)] | None = None
    """Known-good nodes to measure with; not given: idle nodes of the same cohorts whose last check passed."""
    addresses: Annotated[dict[Name, Address], Field(max_length=2 * MOST_NODES)] = Field(default_factory=dict)
    """Where a node is reached by its peers, if not by its host name."""
    benchmark: PairBenchmark = "pair"
    """What pairs measure: TCP, RDMA by perftest, or a collective over all GPUs of both nodes."""
    allow_occupied: Annotated[bool, Strict()] = False
    """Measure even if a job runs on a node: each slows the other down."""


class LocalizationCancel(Input):
    reason: Annotated[ShortText, Field(min_length=1)] = "the nodes are wanted for work"


class PairRead(Output):
    """One pair of a round, with its measurements."""

    a: str
    b: str
    nics: list[str]
    via: str
    state: Literal["waiting", "measuring", "ok", "hung", "missing"]
    bandwidth: dict[str, float]
    """Message size in bytes → B/s."""
    note: str


class RoundRead(Output):
    number: int
    pairs: list[PairRead]


def _node_of(value: Any) -> Any:
    """The node, where a stored verdict names an endpoint."""
    return value["node"] if isinstance(value, dict) else value


EndpointNode = Annotated[str, BeforeValidator(_node_of)]


@fields_of(PairEvidence)
class PairEvidenceRead(Output):
    a: EndpointNode
    b: EndpointNode


@fields_of(LocalizedCulprit)
class CulpritRead(Output):
    evidence: list[PairEvidenceRead]


@fields_of(LocalizationVerdict)
class VerdictRead(Output):
    culprits: list[CulpritRead]


@fields_of(LocalizationRow, without={"addresses", "document", "verdict"})
class LocalizationSummary(Output):
    state: LocalizationRunState


class LocalizationRead(LocalizationSummary):
    benchmark: PairBenchmark
    rounds: list[RoundRead]
    verdict: VerdictRead | None


class PairReportIn(Lenient):
    """The answer of one side of a pair; the types of the probes check ``result``."""

    started_at: UnixSeconds
    finished_at: UnixSeconds
    result: BenchmarkResultIn
