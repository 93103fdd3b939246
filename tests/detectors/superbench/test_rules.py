"""Rule files: what is read, and how a broken one is refused."""

from __future__ import annotations

from typing import Any

import pytest

from mainstay.detectors.cli_errors import InputError
from mainstay.detectors.superbench.rules import Function, read_rules
from tests.detectors.superbench.fleet import MEMORY, rule_file, text

COMBINED = {"function": "multi_rules", "criteria": 'lambda label: bool(label["a"] > 1)', "categories": "C"}


def test_a_rule_is_read_with_all_its_fields() -> None:
    (rule,) = rule_file(r=MEMORY | {"store": True, "metrics": "mem-bw/h2d_bw"}).rules
    assert (rule.name, rule.function, rule.store, rule.category) == ("r", Function.VARIANCE, True, "Mem")
    assert rule.metrics == ("mem-bw/h2d_bw",)
    assert rule.criterion is not None
    assert rule.criterion.text == "lambda x:x<-0.1"


def test_a_stored_rule_without_criteria_stores_values() -> None:
    (rule,) = rule_file(r={"store": True, "categories": "C", "metrics": ["a/b"]}).rules
    assert rule.function is None
    assert rule.criterion is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"function": None}, "rule 'r': function is missing"),
        ({"function": "abb"}, "rule 'r': function 'abb' is unknown; there are variance, value"),
        ({"criteria": None}, "rule 'r': criteria is missing"),
        ({"criteria": 5}, "rule 'r': criteria must be a text"),
        ({"criteria": "x>5"}, "rule 'r': criteria 'x>5' must be a lambda"),
        ({"criteria": "lambda x:x+1"}, "rule 'r': criteria .* must answer True or False"),
        ({"categories": ...}, "rule 'r': categories is missing"),
        ({"categories": ["A", "B"]}, "rule 'r': categories must be one text"),
        ({"metrics": ..., "metircs": ["a/b"]}, "rule 'r': metrics is missing; what is 'metircs'?"),
        ({"metrics": [1]}, "rule 'r': metrics must be a list"),
        ({"metrics": {"a": 1}}, "rule 'r': metrics must be a list"),
        ({"store": "true"}, "rule 'r': store must be true or false"),
        ({"store": False, "function": None}, "function is missing .store: false is the default"),
    ],
)
def test_a_broken_rule_is_refused_by_name_and_field(change: dict[str, Any], why: str) -> None:
    fields = {key: value for key, value in (MEMORY | change).items() if value is not ...}
    with pytest.raises(InputError, match=why):
        rule_file(r=fields)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "superbench.rules is missing"),
        ("superbench:\n  rules: {}", "superbench.rules is missing"),
        ("- a\n- b", "superbench.rules is missing"),
        ("superbench: [", "not YAML: line 1"),
        ("a: !!python/object/apply:os.system ['true']", "not YAML: line 1"),
        ("a: 2026-99-99", "unusable YAML"),
        ("superbench:\n  rules:\n    r: 5", "rule 'r' must be a mapping"),
        ("[" * 5000, "YAML"),
        ("#" * (1 << 20) + "\n", "no rule file"),
    ],
    ids=str.split("empty none list open object date number deep large"),
)
def test_what_is_no_rule_file_is_refused_in_one_line(content: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as refusal:
        read_rules(content)
    assert "\n" not in str(refusal.value)


def test_a_combining_rule_may_read_only_what_is_stored() -> None:
    with pytest.raises(InputError, match="reads rule 'a', which does not exist"):
        rule_file(c=COMBINED)
    with pytest.raises(InputError, match="reads rule 'a', which lacks store: true"):
        rule_file(a=MEMORY, c=COMBINED)


def test_a_later_rule_is_judged_before_the_one_that_reads_it() -> None:
    read = rule_file(c=COMBINED, z=MEMORY, a=MEMORY | {"store": True})
    assert read.late == ("c",)
    names = [rule.name for rule in read.rules]
    assert names.index("a") < names.index("c")
    assert sorted(names) == ["a", "c", "z"]


def test_rules_that_read_each_other_are_refused() -> None:
    with pytest.raises(InputError, match="in a circle"):
        rule_file(a=COMBINED | {"store": True})


def test_a_small_file_cannot_become_a_huge_message() -> None:
    """Nine levels of ten aliases each: a billion when written out."""
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]\n" for n in range(1, 10))
    for field in ("categories", "criteria", "function", "store", "metrics"):
        fields = MEMORY | {field: "PLACE"}
        content = "l0: &l0 [lol]\n" + levels + text(r=fields).replace("PLACE", "*l9")
        with pytest.raises(InputError, match=field) as refusal:
            read_rules(content)
        assert len(str(refusal.value)) < 200


def test_keys_that_stand_twice_are_remembered() -> None:
    assert read_rules(text(r=MEMORY) + "    r:\n" + text(r=MEMORY).split("    r:\n")[1]).twice == ("r (line 10)",)
