"""Localization never disturbs work: it measures nodes with running jobs only on request."""

from __future__ import annotations

from typing import Any

import pytest

from mainstay.service.jobs.occupancy import NodeOccupiedError
from mainstay.service.services import Services
from tests.service.localization import test_localization as localization
from tests.service.localization.test_localization import Fleet
from tests.service.validation.test_occupied_nodes import job, put_job

Json = dict[str, Any]
NODES = [f"n{number}" for number in range(6)]
services = localization.services


def test_nodes_with_a_job_are_measured_only_on_request(services: Services, report: Json) -> None:
    localization.add_nodes(services, report, *NODES)
    put_job(services, job("n3"))
    with pytest.raises(NodeOccupiedError, match="node n3: job llm runs on this node"):
        localization.start_localization(services, *NODES)
    key = localization.start_localization(services, *NODES, allow_occupied=True)
    row = localization.play(services, key, Fleet(slow={"n3": 0.5}), NODES)
    assert localization.names(row) == ["n3"]


@pytest.mark.parametrize("occupied", [["n3"], NODES])
def test_a_job_that_begins_later_is_not_disturbed_and_blames_nobody(
    services: Services, report: Json, occupied: list[str]
) -> None:
    localization.add_nodes(services, report, *NODES)
    key = localization.start_localization(services, *NODES)
    put_job(services, job(*occupied))
    fleet = Fleet()
    row = localization.play(services, key, fleet, NODES)
    assert localization.names(row) == []
    assert list(row.verdict["unknown"]) == occupied
    assert not fleet.seen or occupied != NODES, "no node with a job gets a pair"
    assert "job llm runs on this node" in row.document
