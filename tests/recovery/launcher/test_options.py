"""What ``mainstay run`` accepts, and the one line it says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.launcher.main import main
from recovery.launcher.options import OnHang, OptionsError, parse


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


def test_a_hang_is_only_reported_unless_asked(script: str) -> None:
    assert parse([script]).on_hang is OnHang.REPORT
    assert parse(["--on-hang", "recover", script]).on_hang is OnHang.RECOVER


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nnodes", "0", "S"], "--nnodes must be at least 1"),
        (["--nnodes", "two", "S"], "invalid int value"),
        (["--on-hang", "reboot", "S"], "invalid choice: 'reboot'"),
        (["--node-rank", "1", "S"], "--node-rank must be from 0 to 0"),
        (["--nnodes", "2", "S"], "--rdzv-endpoint HOST:PORT is needed"),
        (["--rdzv-endpoint", "nowhere", "S"], "must look like HOST:PORT"),
        (["--rdzv-endpoint", "h:99999", "S"], "must look like HOST:PORT"),
        (["--nnodes", "2", "--rdzv-endpoint", "h:0", "S"], "needs a port that all nodes know"),
        (["--nnodes", "2", "--rdzv-endpoint", "h:1", "--job-id", "j", "S"], "need a common secret"),
        (["--job-id", "a/b", "S"], "--job-id 'a/b' is not a legal id"),
        (["--node-name", "", "--job-id", "ä", "S"], "is not a legal id"),
        (["--spares", "-1", "S"], "may not be negative"),
        (["--disk-every", "5", "S"], "--disk-every needs --checkpoint-dir"),
        (["--node-timeout", "0", "S"], "time-outs must be positive"),
        (["--token-file", "/nowhere/token", "S"], "--token-file /nowhere/token cannot be read"),
        (["/nowhere/train.py"], "script /nowhere/train.py is not there"),
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
