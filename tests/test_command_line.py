"""The command line is a contract: its surface is frozen, and bad input gives one clear line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mainstay import cli
from tests.commands import run_here

ROOT = Path(__file__).resolve().parents[1]
FROZEN = {
    "accept-gpu", "ack", "agent", "analyze-hang", "backup", "checkpoint", "cluster", "completion", "config", "criteria",
    "demo", "devices", "doctor", "drain", "findings", "generate", "incidents", "job", "jobs", "localize", "login",
    "node", "nodes", "notifications", "plan", "policy", "record", "relay", "replay", "replay-job", "report", "restore",
    "run", "select", "serve", "silence", "silences", "simulate", "status", "superbench", "team", "token", "undrain",
    "up", "user", "validate", "worker",
}  # fmt: skip


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mainstay", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_the_surface_is_frozen() -> None:
    assert set(cli.COMMANDS) == FROZEN


def test_help_lists_every_command_without_loading_any() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert all(name in done.stdout for name in FROZEN)


@pytest.mark.parametrize("name", sorted(FROZEN))
def test_every_command_explains_itself(name: str) -> None:
    done = run_here(name, "--help")
    assert done.returncode == 0, done.stderr
    assert name in done.stdout


@pytest.mark.parametrize("name", sorted(FROZEN))
def test_an_unknown_option_is_refused_in_words(name: str) -> None:
    """Or, where arguments are required, what is missing: in any case words, a code, and no traceback."""
    done = run_here(name, "--no-such-option-exists")
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert "no-such-option-exists" in said or "required" in said.lower() or "requires" in said.lower(), said
    assert "Traceback" not in said


def test_an_unknown_command_is_refused_in_words() -> None:
    done = run("frobnicate")
    assert done.returncode != 0
    assert "frobnicate" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_command_loads_no_other(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A training node lacks the packages of most commands; it is not told to install them."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.delitem(sys.modules, "mainstay.detectors.superbench.rules", raising=False)
    monkeypatch.delitem(sys.modules, "mainstay.detectors.superbench.cli", raising=False)
    monkeypatch.setattr(sys, "argv", ["mainstay", "frobnicate"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert 'Unknown command "frobnicate"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("no",), {"node", "nodes", "notifications"}),
        (("nodes", "--st"), {"--state"}),
        (("token", "cr"), {"create"}),
        (("completion", ""), {"bash", "zsh", "fish"}),
        (("run", "--n"), set()),
    ],
)
def test_bash_completes_commands_and_options(words: tuple[str, ...], found: set[str], tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text(run_here("completion", "bash").stdout)
    asked = (
        f'source {script}; COMP_WORDS=(mainstay "$@"); COMP_CWORD=$#; COMP_TYPE=9; '
        "$(complete -p mainstay | sed 's/.*-F \\([^ ]*\\).*/\\1/') mainstay; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", "-c", asked, "bash", *words], capture_output=True, text=True, timeout=60, check=True)
    assert {line.strip() for line in done.stdout.split("\n")} - {""} == found


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_complete_every_command(shell: str) -> None:
    script = run_here("completion", shell).stdout
    assert all(name in script for name in FROZEN)


def test_completion_needs_no_extra_of_another_command() -> None:
    code = "import sys; sys.modules['msgspec'] = None; sys.argv = ['mainstay', 'completion', 'bash']\n"
    code += "from mainstay.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "serve" in done.stdout


def test_the_sdk_is_lent_lazily() -> None:
    code = "import sys, mainstay; assert 'torch' not in sys.modules; mainstay.nothing"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert "no attribute 'nothing'" in done.stderr


@pytest.mark.parametrize("name", sorted(cli.PLAIN))
def test_commands_of_training_nodes_and_node_daemons_need_no_command_line_library(name: str) -> None:
    code = f"import sys; sys.modules['cyclopts'] = None; sys.argv = ['mainstay', '{name}', '--help']\n"
    code += "from mainstay.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout
