"""A verdict latches until a check of equal or greater power passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstay.probes.core_types import Verdict
from mainstay.service.validation.latch import POWER, Latch, latched, power_of

V = Verdict
SUITES = ("quick", "standard", "deep", "unlisted")


@pytest.mark.parametrize(
    ("current_verdict", "verdict", "suite", "expected"),
    [
        (None, V.PASS, "quick", Latch(V.PASS, 1)),
        (Latch(V.FAIL, 3), V.PASS, "quick", Latch(V.FAIL, 3)),
        (Latch(V.FAIL, 3), V.PASS, "deep", Latch(V.PASS, 3)),
        (Latch(V.FAIL, 1), V.PASS, "standard", Latch(V.PASS, 2)),
        (Latch(V.FAIL, 1), V.WARN, "deep", Latch(V.FAIL, 1)),
        (Latch(V.FAIL, 1), V.UNKNOWN, "deep", Latch(V.FAIL, 1)),
        (Latch(V.PASS, 3), V.UNKNOWN, "quick", Latch(V.UNKNOWN, 1)),
        (Latch(V.WARN, 3), V.FAIL, "quick", Latch(V.FAIL, 3)),
        (Latch(V.FAIL, 1), V.FAIL, "deep", Latch(V.FAIL, 3)),
    ],
)
def test_examples(current_verdict: Latch | None, verdict: Verdict, suite: str, expected: Latch) -> None:
    assert latched(current_verdict, verdict, suite) == expected


@given(st.lists(st.tuples(st.sampled_from(V), st.sampled_from(SUITES)), min_size=1))
def test_only_a_strong_enough_pass_clears_a_failure(checks: list[tuple[Verdict, str]]) -> None:
    current_verdict: Latch | None = None
    for verdict, suite in checks:
        before, current_verdict = current_verdict, latched(current_verdict, verdict, suite)
        if before is not None and before.verdict is V.FAIL and current_verdict.verdict is not V.FAIL:
            assert verdict is V.PASS
            assert power_of(suite) >= before.power
        if current_verdict.verdict is V.PASS:
            assert before is None or before.verdict is V.PASS or verdict is V.PASS


def test_an_unlisted_suite_proves_least() -> None:
    assert power_of("unlisted") < min(POWER.values())
