"""What ``mainstay run`` accepts, and the one line it says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainstay.recovery.node.main import main
from mainstay.recovery.option_values import OptionsError
from mainstay.recovery.options import OnHang, parse


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def test_torchruns_options_and_the_scripts_own(script: str) -> None:
    found = parse(["--nproc_per_node", "4", "--max-restarts=2", script, "--steps", "9", "--nnodes", "7"])
    assert (found.nnodes, found.nproc, found.max_restarts, found.world_size) == (1, 4, 2, 4)
    assert found.argv == ("--steps", "9", "--nnodes", "7")
    assert (found.host, found.port) == ("127.0.0.1", 0)
    assert len(found.token) == 32


def test_a_hang_is_recovered_from_unless_only_a_report_is_asked_for(script: str) -> None:
    assert parse([script]).on_hang is OnHang.RECOVER
    assert parse(["--on-hang", "report", script]).on_hang is OnHang.REPORT


def test_protection_and_what_fails_together(script: str) -> None:
    found = parse([script])
    assert (str(found.protection), found.protection.group_size, found.domain, found.domains) == ("xor", 8, "", ())
    words = [
        "--protection",
        "rs:2",
        "--group-size",
        "6",
        "--failure-domain",
        "rack-a",
        "--failure-domain",
        "node-3=rack-b",
        script,
    ]
    found = parse(words)
    assert (str(found.protection), found.protection.group_size) == ("rs:2", 6)
    assert (found.domain, found.domains) == ("rack-a", (("node-3", "rack-b"),))


@pytest.mark.parametrize(("nodes", "quorum"), [("1", 1), ("2", 2), ("3", 2), ("4", 3), ("16", 9)])
def test_a_majority_chooses_the_next_coordinator(script: str, nodes: str, quorum: int, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    words = ["--nnodes", nodes, "--rdzv-endpoint", "head:1", "--job-id", "j", "--token-file", str(token)]
    assert parse([*words, script]).quorum == quorum
    assert parse([*words, "--quorum", "1", script]).quorum == 1
    with pytest.raises(OptionsError, match=f"--quorum must be from 1 to {nodes}"):
        parse([*words, "--quorum", str(int(nodes) + 1), script])
    assert parse([*words, "--launcher-endpoint", "gate:77", script]).launcher_endpoint == ("gate", 77)
    with pytest.raises(OptionsError, match="must look like HOST:PORT"):
        parse([*words, "--launcher-endpoint", "gate", script])


def test_spare_nodes_belong_to_the_job_without_ranks(script: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    words = ["--nnodes", "16:18", "--rdzv-endpoint", "head:1", "--job-id", "j", "--token-file", str(token)]
    found = parse([*words, "--node-rank", "17", "--nproc-per-node", "8", script])
    assert (found.nnodes, found.spare_nodes, found.max_nodes, found.world_size) == (16, 2, 18, 128)
    assert found.quorum == 10, "the majority of all that may vote"
    with pytest.raises(OptionsError, match="--node-rank must be from 0 to 17"):
        parse([*words, "--node-rank", "18", script])


def test_a_module_needs_no_file() -> None:
    found = parse(["-m", "package.train", "--seed", "1"])
    assert found.module
    assert (found.script, found.argv) == ("package.train", ("--seed", "1"))


def test_all_nodes_derive_the_same_secret_from_the_service_token(script: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("service-secret\n")
    words = ["--nnodes", "2", "--rdzv-endpoint", "head:29400", "--job-id", "j", "--service-token-file", str(token)]
    first, second = parse([*words, script]), parse([*words, "--node-rank", "1", script])
    assert first.token == second.token
    assert "service-secret" not in first.token
    assert first.service_token == "service-secret"


DISK = ["--checkpoint-dir", "d", "--checkpoint-interval", "10", "--checkpoint-parity"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nnodes", "0", "S"], "argument --nnodes: '0' must be at least 1"),
        (["--nnodes", "two", "S"], "argument --nnodes: 'two' must be a number of nodes, or MIN:MAX"),
        (["--nnodes", "a:b", "S"], "argument --nnodes: 'a:b' must be a number of nodes, or MIN:MAX"),
        (["--nnodes", "2:", "S"], "argument --nnodes: '2:' must be a number of nodes, or MIN:MAX"),
        (["--nnodes", "3:2", "S"], "argument --nnodes: '3:2' must be at least 1, and MAX at least MIN"),
        (["--nnodes", "0:2", "S"], "argument --nnodes: '0:2' must be at least 1, and MAX at least MIN"),
        (["--nnodes", "1:2", "S"], "--rdzv-endpoint HOST:PORT is needed"),
        (["--on-hang", "reboot", "S"], "invalid choice: 'reboot'"),
        (["--node-rank", "1", "S"], "--node-rank must be from 0 to 0"),
        (["--nnodes", "2", "S"], "--rdzv-endpoint HOST:PORT is needed"),
        (["--rdzv-endpoint", "nowhere", "S"], "must look like HOST:PORT"),
        (["--rdzv-endpoint", "h:99999", "S"], "must look like HOST:PORT"),
        (["--protection", "raid6", "S"], "--protection, --group-size: 'raid6' is none of none, xor, rs:T, copies:M"),
        (["--protection", "rs:3", "--group-size", "3", "S"], "a group of 3 nodes is too small for rs:3: at least 4"),
        (["--failure-domain", "=b", "S"], "--failure-domain =b must look like RACK or NODE=RACK"),
        (["--failure-domain", "node-1=", "S"], "--failure-domain node-1= must look like RACK or NODE=RACK"),
        (["--nnodes", "2", "--rdzv-endpoint", "h:0", "S"], "needs a port that all nodes know"),
        (["--nnodes", "2", "--rdzv-endpoint", "h:1", "--job-id", "j", "S"], "need a common secret"),
        (["--job-id", "a/b", "S"], "--job-id 'a/b' is not a legal id"),
        (["--node-name", "", "--job-id", "ä", "S"], "is not a legal id"),
        (["--standbys", "-1", "S"], "must not be negative"),
        (["--checkpoint-interval", "5", "S"], "--checkpoint-interval needs --checkpoint-dir"),
        (["--checkpoint-interval", "often", "S"], "--checkpoint-interval: 'often' must be a number of steps or auto"),
        (["--checkpoint-interval", "auto", "S"], "--checkpoint-interval needs --checkpoint-dir"),
        (["--on-loss", "reinstantiate", "S"], "--on-loss reinstantiate needs --checkpoint-dir"),
        (["--resume", "latest", "S"], "--resume needs --checkpoint-dir"),
        (["--checkpoint-upload", "s3://b", "S"], "--checkpoint-upload needs --checkpoint-dir"),
        (["--checkpoint-upload", "ftp://b", "S"], "--checkpoint-upload: 'ftp://b' must be s3://BUCKET/PREFIX"),
        (["--checkpoint-keep", "0", "S"], "--checkpoint-keep must be at least 1"),
        (["--checkpoint-keep-hours", "-1", "S"], "--checkpoint-keep-hours must not be negative"),
        (["--checkpoint-upload-rate", "-1", "S"], "--checkpoint-upload-rate must not be negative"),
        (
            ["--checkpoint-interval", "5", "--checkpoint-dir", "d", "--checkpoint-replicas", "-1", "S"],
            "--checkpoint-replicas must not be negative",
        ),
        (
            [*DISK, "--checkpoint-replicas", "1", "S"],
            "--checkpoint-parity needs --protection, and no --checkpoint-replicas",
        ),
        ([*DISK, "--protection", "none", "S"], "--checkpoint-parity needs --protection, and no --checkpoint-replicas"),
        (
            [*DISK, "--parity-interval", "4", "S"],
            "needs a --checkpoint-interval that is a multiple of --parity-interval",
        ),
        (
            [*DISK, "--parity-interval", "0", "S"],
            "needs a --checkpoint-interval that is a multiple of --parity-interval",
        ),
        ([*DISK, "--parity-interval", "auto", "S"], "of --parity-interval, neither of them auto"),
        (
            ["--checkpoint-encoding", "exact", "--checkpoint-replicas", "1", "S"],
            "--checkpoint-encoding exact needs --checkpoint-replicas 0",
        ),
        (
            ["--checkpoint-encoding", "8bit", "--checkpoint-replicas", "1", "S"],
            "--checkpoint-encoding 8bit needs --checkpoint-replicas 0",
        ),
        (
            [*DISK, "--checkpoint-encoding", "8bit", "S"],
            "--checkpoint-encoding 8bit cannot be used with --checkpoint-parity",
        ),
        (
            [*DISK, "--checkpoint-encoding", "exact", "--protection", "copies:2", "S"],
            "--checkpoint-encoding exact with --checkpoint-parity needs --protection xor or rs:T",
        ),
        (
            [*DISK, "--checkpoint-encoding", "exact", "--checkpoint-upload", "s3://b/p", "S"],
            "with --checkpoint-parity needs --protection xor or rs:T, and no --checkpoint-upload",
        ),
        (["--checkpoint-encoding", "small", "S"], "invalid choice: 'small'"),
        (["--checkpoint-dir", "d", "--accept-quantized", "S"], "--accept-quantized needs --resume"),
        (["--node-mtbf-hours", "0", "S"], "--node-mtbf-hours must be above 0"),
        (["--parity-interval", "-3", "S"], "must not be negative"),
        (["--node-timeout", "0", "S"], "timeouts must be above 0 s"),
        (["--token-file", "/nowhere/token", "S"], "--token-file /nowhere/token cannot be read"),
        (["/nowhere/train.py"], "script /nowhere/train.py does not exist"),
        ([], "the following arguments are required: script"),
        (["--unheard-of", "S"], "unrecognized arguments"),
    ],
)
def test_bad_input_is_named(
    words: list[str], said: str, script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MAINSTAY_JOB_TOKEN", raising=False)
    words = [script if word == "S" else word for word in words]
    with pytest.raises(OptionsError) as caught:
        parse(words)
    assert said in str(caught.value)
    assert main(words) == 2
    assert capsys.readouterr().err.strip().count("\n") == 0


def test_an_empty_token_file(script: str, tmp_path: Path) -> None:
    (tmp_path / "token").touch()
    with pytest.raises(OptionsError, match="is empty"):
        parse(["--token-file", str(tmp_path / "token"), script])


def test_auto_begins_somewhere_and_is_remembered(script: str) -> None:
    auto = parse(
        [
            "--parity-interval",
            "auto",
            "--checkpoint-interval",
            "auto",
            "--checkpoint-dir",
            "d",
            "--node-mtbf-hours",
            "100",
            script,
        ]
    )
    assert (auto.parity_auto, auto.disk_auto, auto.mtbf_hours) == (True, True, 100.0)
    assert (auto.parity_every, auto.disk_every) == (10, 20)
    plain = parse(["--checkpoint-interval", "7", "--checkpoint-dir", "d", "--resume", "auto", script])
    assert (plain.parity_auto, plain.disk_auto, plain.disk_every, plain.resume) == (False, False, 7, "auto")
