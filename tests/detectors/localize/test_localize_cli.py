"""``mainstay localize``: a file of pairs in, culprits out, an exit code that a script can use."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainstay.detectors.localize.cli import _Line, _result, _show, _topology, localize
from mainstay.detectors.localize.model import LocalizationVerdict, NodePair, PairResult, Round
from mainstay.detectors.localize.plan import start_localization
from mainstay.detectors.localize.topology import Endpoint, Nic, flat

Json = dict[str, Any]


def write(path: Path, pairs: list[Json], text: str = "") -> Path:
    file = path / "pairs.jsonl"
    file.write_text("\n".join(json.dumps(pair) for pair in pairs) + "\n" + text)
    return file


def pairs(slow: float) -> list[Json]:
    return [
        {"a": "n1", "b": "n2", "bandwidth": {"4096": 1e9, "4194304": 4.6e10}},
        {"a": "n3", "b": "n4", "bandwidth": {"4096": 1.01e9, "4194304": 4.6e10 * slow}},
        {"a": "n5", "b": "n6", "bandwidth": {"4096": 1e9, "4194304": 4.62e10}},
        {"a": "n1", "b": "n3", "bandwidth": {"4096": 0.99e9, "4194304": 4.65e10 * slow}, "round": 2},
        {"a": "n2", "b": "n4", "bandwidth": {"4096": 1e9, "4194304": 4.58e10}, "round": 2},
        {"a": "n3", "b": "n5", "bandwidth": {"4096": 1e9, "4194304": 4.6e10 * slow}, "round": 3},
    ]


def test_the_culprit_is_on_the_first_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert localize(write(tmp_path, pairs(0.7))) == 1
    out = capsys.readouterr().out
    assert out.startswith("Node n3: 7")
    assert "at 4 MiB (not at 4 KiB)" in out.replace("\n", " ")
    assert "n3 - n5: 70%" in out


def test_json_is_all_that_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert localize(write(tmp_path, pairs(0.7)), as_json=True) == 1
    told = json.loads(capsys.readouterr().out)
    assert [c["name"] for c in told["verdict"]["culprits"]] == [["n3"]]
    assert sorted(told["verdict"]["good"]) == ["n1", "n2", "n4", "n5", "n6"]


def test_healthy_pairs_are_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert localize(write(tmp_path, pairs(1.0))) == 0
    assert "No slow part" in capsys.readouterr().out


def test_too_little_is_no_verdict_and_says_what_to_measure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert localize(write(tmp_path, pairs(0.7)[:3])) == 4
    out = capsys.readouterr().out
    assert out.startswith("No culprit found")
    assert "Measure next: n" in out


def test_times_and_a_topology(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [f"n{k}" for k in range(8)]
    switches = {name: f"leaf-{k // 2}" for k, name in enumerate(nodes)}
    chart = {"nodes": [{"name": n, "nics": [{"switches": [switches[n], "spine"]}]} for n in nodes]}
    (tmp_path / "topology.json").write_text(json.dumps(chart))
    rows: list[Json] = []
    for one in range(8):
        for other in range(one + 1, 8):
            far = one // 2 != other // 2
            slow = far and 0 in {one // 2, other // 2}
            rows.append({"a": nodes[one], "b": nodes[other], "seconds": {"4194304": 2e-3 if slow else 1e-3}})
    assert localize(write(tmp_path, rows), topology=tmp_path / "topology.json") == 1
    assert "uplinks of switch leaf-0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": "n1", "b"', "line 7"),
        ('{"a": "n1", "b": "n2", "bandwidth": {"big": 1.0}}', "line 7"),
        ('{"a": "n1", "b": "n1", "bandwidth": 5.0}', "itself"),
        ('{"a": "n1", "b": "n2", "bandwidth": -5.0}', "above 0"),
        ('{"a": "n1", "b": "n2", "seconds": 0}', "more than"),
        ('{"a": "n1", "b": "n2", "speed": 5.0}', "speed"),
        ('{"a": "n1", "b": "n2"}', "without a bandwidth"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str) -> None:
    assert localize(write(tmp_path, pairs(1.0), text)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("gpus", "kept"),
    [
        ({"y": "h", "x": "g"}, ("g", "h")),
        ({"x": "g", "y": "g"}, ()),
        ({"x": "g", "y": ""}, ()),
        ({"x": ""}, ()),
    ],
)
def test_without_a_topology_each_nic_has_the_gpu_it_was_measured_with(
    gpus: dict[str, str], kept: tuple[str, ...]
) -> None:
    speed = {"1": 1e9}
    results = [PairResult(a=Endpoint("n1", nic, gpu), b=Endpoint("n2"), bandwidth=speed) for nic, gpu in gpus.items()]
    first, second = _topology(None, results).nodes
    assert (first.name, [nic.name for nic in first.nics], first.gpus) == ("n1", sorted(gpus), kept)
    assert (second.name, second.nics, second.gpus) == ("n2", (Nic(),), ())


def test_times_become_speeds() -> None:
    """Without a size, as of one byte; a speed that is given stands."""
    line = {"a": "n1", "b": {"node": "n2", "nic": "x"}}
    told = [
        _result(msgspec.convert(line | more, _Line))
        for more in (
            {"seconds": 2.0},
            {"seconds": {"1000": 2.0, "0": 4.0}, "bandwidth": {"1000": 9.0}},
            {"bandwidth": 7.0},
        )
    ]
    assert [one.bandwidth for one in told] == [{"0": 0.5}, {"1000": 9.0, "0": 0.25}, {"0": 7.0}]
    assert (told[0].a, told[0].b, told[0].round) == (Endpoint("n1"), Endpoint("n2", "x"), 0)


@pytest.mark.parametrize(
    "chart",
    [
        "{",
        '{"nodes": [{"name": "n1"}]}',
        '{"nodes": [{"name": ""}]}',
        json.dumps({"nodes": [{"name": f"n{k}"} for k in range(1, 7)], "spine": {}}),
        json.dumps({"nodes": [{"name": f"n{k}", "nic": "x"} for k in range(1, 7)]}),
        json.dumps({"nodes": [{"name": f"n{k}", "nics": [{"switch": "l"}]} for k in range(1, 7)]}),
        json.dumps({"nodes": [{"name": f"n{k}", "nics": []} for k in range(1, 7)]}),
        json.dumps(
            {"nodes": [{"name": f"n{k}", "nics": [{"name": "x"}, {"name": "y"}], "gpus": ["g"]} for k in range(7)]}
        ),
    ],
)
def test_a_topology_that_does_not_fit_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], chart: str
) -> None:
    (tmp_path / "t.json").write_text(chart)
    assert localize(write(tmp_path, pairs(1.0)), topology=tmp_path / "t.json") == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_no_file_and_an_empty_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert localize(tmp_path / "none") == 2
    assert localize(write(tmp_path, [])) == 2
    assert "holds no pair" in capsys.readouterr().err


@pytest.mark.parametrize(("count", "more"), [(12, ""), (13, "Unknown: 1 more (--json lists them)")])
def test_twelve_unknown_nodes_are_listed(capsys: pytest.CaptureFixture[str], count: int, more: str) -> None:
    names = [f"n{k:02d}" for k in range(count)]
    state = start_localization(flat(names))
    unknown = dict.fromkeys(names, "not measured")
    verdict = LocalizationVerdict(culprits=(), good=(), unknown=unknown, rounds=0, noise=0.0123, settled=False)
    ends = [Endpoint("n00", "x", "g"), Endpoint("n01")]
    step = Round(number=1, pairs=(NodePair(a=ends[0], b=ends[1], via="s1"), NodePair(a=ends[1], b=ends[0])))
    _show(state, verdict, step)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "No culprit found; some parts are unknown."
    assert lines[1:13] == [f"Unknown: {name}: not measured" for name in names[:12]]
    assert lines[13:-2] == ([more] if more else [])
    assert lines[-2] == "Measure next: n00:x:g - n01 over s1, n01 - n00:x:g"
    assert lines[-1] == "0 pairs; 0 nodes good; healthy pairs scatter by 1.2%"
    settled = msgspec.structs.replace(verdict, unknown={}, noise=None, settled=True)
    _show(state, settled, step)
    assert capsys.readouterr().out.splitlines() == [
        "No slow part: all pairs are alike.", "0 pairs; 0 nodes good; healthy pairs scatter by unknown",
    ]  # fmt: skip


END = "# Out of bounds values : 0 OK\n"


def nccl_log(a: str, b: str, slow: float = 1.0, end: str = END) -> str:
    """What rank 0 of nccl-tests 2.17 prints of one GPU a node under MPI (src/util.cu)."""
    ranks = "".join(
        f"#  Rank {rank:2d} Group  0 Pid {7000 + rank:6d} on {node:>10s} device  0 [0000:1a:00] NVIDIA H100\n"
        for rank, node in enumerate((a, b))
    )
    row = "{0:12d}  {1:12d}     float    none      -1{2}       0{2}    N/A\n"
    rows = ""
    for size, microseconds in ((8192, 20.0), (64 << 20, 1400.0 / slow)):
        rate = size / microseconds / 1e3
        rows += row.format(size, size // 8, f"  {microseconds:7.2f}  {rate:6.2f}  {rate / 2:6.2f}")
    return f"# nThread 1 nGpus 1 minBytes 8192 maxBytes 67108864\n#\n# Using devices\n{ranks}#\n{rows}{end}"


def test_logs_of_nccl_tests_name_the_slow_node_of_their_pairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "alltoall.log"
    runs = [(p["a"], p["b"]) for p in pairs(1.0)]
    file.write_text("".join(nccl_log(a, b, 0.7 if "n3" in (a, b) else 1.0) for a, b in runs))
    assert localize(file) == 1
    out = capsys.readouterr().out
    assert re.match(r"Node n3: 7[01]% of the usual speed at 64 MiB \(not at 8 KiB\)", out), out
    file.write_text("".join(nccl_log(a, b, end="" if "n3" in (a, b) else END) for a, b in runs))
    assert localize(file, as_json=True) == 1
    (culprit,) = json.loads(capsys.readouterr().out)["verdict"]["culprits"]
    assert (culprit["name"], culprit["speed"]) == (["n3"], None)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (nccl_log("n1", "n1"), "run 1: a pair has two nodes, not 1: n1"),
        (
            nccl_log("n1", "n2") + nccl_log("n1", "n3", end="# Out of bounds values : 3 FAILED\n"),
            "run 2: .*3 wrong values",
        ),
    ],
)
def test_a_run_that_is_no_pair_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], log: str, words: str
) -> None:
    (file := tmp_path / "nccl.log").write_text(log)
    assert localize(file) == 2
    assert re.search(words, capsys.readouterr().err)
