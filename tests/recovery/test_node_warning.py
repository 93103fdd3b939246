"""What a coordinator keeps of the nodes that are not trusted, and for how long."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from mainstay.recovery.node_warning import OWN_SECONDS, NodeWarning, NodeWarnings, read

HOT = NodeWarning(reason="hot", factor=10.0, since=1.0)


def test_a_service_that_has_reported_knows_more_than_the_coordinator() -> None:
    warnings = NodeWarnings()
    warnings = warnings.suspect("a", "its rank hangs")
    assert warnings.current()["a"].reason == "its rank hangs"
    warnings = warnings.trust("a")
    assert warnings.current() == {}
    warnings = msgspec.structs.replace(warnings, reported={"b": HOT})
    warnings = warnings.suspect("a", "its rank hangs")
    assert warnings.current() == {"b": HOT}


def test_what_the_coordinator_found_is_forgotten_in_time_and_what_the_service_reports_is_not() -> None:
    old = NodeWarning(reason="hot", factor=10.0, since=time.time() - OWN_SECONDS)
    warnings = NodeWarnings(reported={"a": old}, own={"b": old})
    assert warnings.current() == {"a": old}
    warnings = warnings.note("a", NodeWarning(reason="its memory flips bits", factor=10.0, since=time.time()))
    assert warnings.current()["a"] is old, "the service's own words first"


def test_a_refusal_of_the_service_comes_first() -> None:
    closed = NodeWarning(reason="suite quick failed", factor=1.0, since=2.0, cordoned=True)
    assert NodeWarnings(reported={"a": HOT}, refused={"a": closed}).current() == {"a": closed}


def test_a_failed_preflight_comes_before_what_the_service_reports_and_is_not_forgotten() -> None:
    failed = NodeWarning(reason="wrong bits", factor=1.0, since=time.time() - 2 * OWN_SECONDS, cordoned=True)
    closed = NodeWarning(reason="suite quick failed", factor=1.0, since=2.0, cordoned=True)
    assert NodeWarnings(reported={"a": HOT}, own={"a": failed}).current() == {"a": failed}
    assert NodeWarnings(own={"a": failed}, refused={"a": closed}).current() == {"a": closed}


def test_an_older_service_says_nothing_of_cordons_and_a_newer_one_more() -> None:
    told = {"reason": "hot", "factor": 10.0, "since": 1.0, "corrupt": False}
    assert read({"node_warnings": {"a": told, "other": told}}, {"a"}) == {"a": HOT}
    newer = told | {"cordoned": True, "color": "red"}
    assert read({"node_warnings": {"a": newer}}, {"a"}) == {"a": msgspec.structs.replace(HOT, cordoned=True)}


@pytest.mark.parametrize("answer", [None, [], {}, {"node_warnings": None}, {"node_warnings": {"a": {"reason": 5}}}])
def test_an_answer_without_warnings_that_can_be_read_is_none(answer: Any) -> None:
    assert read(answer, {"a"}) is None
