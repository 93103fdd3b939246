"""Settings from options, environment and file: which one wins, what is refused, and what the commands print."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from mainstay.cli import build_app
from mainstay.service.config import load as module
from mainstay.service.config.cli import check, show
from mainstay.service.config.fields import mask, setting_fields
from mainstay.service.config.load import InvalidSettingsError, load
from mainstay.service.config.options import ConfigOptions
from mainstay.service.config.variables import OTHER_VARIABLES
from mainstay.service.settings import Settings

ROOT = Path(__file__).resolve().parents[3]
SECRET = "hunter2"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings but those of the test."""
    for field in setting_fields():
        monkeypatch.delenv(field.variable, raising=False)
    monkeypatch.delenv("MAINSTAY_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(module, "SYSTEM_FILE", tmp_path / "etc.toml")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def problems(options: dict[str, object] | None = None, file: Path | None = None) -> list[str]:
    with pytest.raises(InvalidSettingsError) as caught:
        load(options, file)
    return caught.value.problems


# which source wins


def test_without_any_source_every_setting_has_its_default(tmp_path: Path) -> None:
    loaded = load()
    assert loaded.settings == Settings()
    assert loaded.settings.data_dir == tmp_path / ".mainstay"
    assert loaded.file is None


def test_option_beats_environment_beats_file_beats_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "a.toml", "port = 1\nhost = 'h1'\nlog_level = 'debug'\n[telemetry]\nring_seconds = 100\n")
    monkeypatch.setenv("MAINSTAY_PORT", "2")
    monkeypatch.setenv("MAINSTAY_HOST", "h2")
    monkeypatch.setenv("MAINSTAY_TELEMETRY__RETENTION_HOURS", "3")
    loaded = load({"port": 3, "telemetry": {"max_frame_bytes": 4096}}, file)
    settings = loaded.settings
    assert (settings.port, settings.host, settings.log_level, settings.log_format) == (3, "h2", "debug", "console")
    telemetry = settings.telemetry
    assert (telemetry.ring_seconds, telemetry.retention_hours, telemetry.max_frame_bytes) == (100, 3, 4096)
    kinds = [source.kind if source else None for source in map(loaded.source_of, [("port",), ("host",), ("blocks",)])]
    assert kinds == ["option", "environment", None]


def test_the_first_settings_file_found_is_the_only_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def port(options: dict[str, object] | None = None, file: Path | None = None) -> int:
        return load(options, file).settings.port

    write(tmp_path / "etc.toml", "port = 5\nlog_level = 'debug'")
    assert port() == 5
    write(tmp_path / ".mainstay" / "mainstay.toml", "port = 4")
    assert port() == 4
    assert load().settings.log_level == "info"
    write(tmp_path / "data" / "mainstay.toml", "port = 3")
    monkeypatch.setenv("MAINSTAY_DATA_DIR", str(tmp_path / "data"))
    assert port() == 3
    assert port({"data_dir": tmp_path / ".mainstay"}) == 4
    monkeypatch.setenv("MAINSTAY_CONFIG", str(write(tmp_path / "named.toml", "port = 2")))
    assert port() == 2
    assert port(file=write(tmp_path / "given.toml", "port = 1")) == 1


# what is refused


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("TELEMETRY__RING_SECOND", "TELEMETRY__RING_SECONDS"),
        ("TELEMTRY__RING_SECONDS", "TELEMETRY__RING_SECONDS"),
        ("TELEMETRY_RING_SECONDS", "TELEMETRY__RING_SECONDS"),
        ("PROT", "PORT"),
        ("DATADIR", "DATA_DIR"),
        ("JOIN_TOKN", "JOIN_TOKEN"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_name(
    monkeypatch: pytest.MonkeyPatch, typo: str, meant: str
) -> None:
    monkeypatch.setenv(f"MAINSTAY_{typo}", SECRET)
    line = f"Unknown setting MAINSTAY_{typo}. Did you mean MAINSTAY_{meant}? Fix or unset it."
    assert problems() == [line]


def test_a_name_like_no_other_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSTAY_" + "XYZZY", "1")
    assert problems() == [
        "Unknown setting MAINSTAY_XYZZY. 'mainstay config show --toml' lists all settings. Fix or unset it."
    ]


def test_variables_of_other_parts_are_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OTHER_VARIABLES.keys() - {"MAINSTAY_CONFIG"}:
        monkeypatch.setenv(name, "x")
    assert load().settings == Settings()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("prot = 1", "Unknown setting prot in {}. Did you mean port? Fix or remove it."),
        (
            "[telemetri]\nring_seconds = 100",
            "Unknown setting telemetri in {}. Did you mean telemetry? Fix or remove it.",
        ),
        (
            "[telemetry]\nring_second = 100",
            "Unknown setting telemetry.ring_second in {}. Did you mean telemetry.ring_seconds? Fix or remove it.",
        ),
        ("port = 'hunter2'", "Cannot use port in {}: it must be a valid integer, unable to parse string"),
        ("[telemetry]\nring_seconds = 1", "Cannot use telemetry.ring_seconds in {}: it must be greater than or equal"),
        ("telemetry = 1", "Cannot use telemetry in {}: it must be a valid dictionary"),
        ("blocks = 'hunter2'", "Cannot use blocks in {}: it must be 'auto', 'sqlite' or 'postgresql'"),
        ("port = \n", "Cannot read settings file {}: Invalid value (at line 1"),
        ("\udcff", "Cannot read settings file {}: 'utf-8' codec"),
    ],
)
def test_a_file_is_refused_with_the_name_of_what_is_wrong(tmp_path: Path, text: str, line: str) -> None:
    file = tmp_path / "a.toml"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    (found,) = problems(file=file)
    assert found.startswith(line.format(file))
    assert SECRET not in found


def test_a_named_file_has_to_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = (
        f"Cannot read settings file {tmp_path / 'none'}: No such file or directory. Fix the file or name another one."
    )
    assert problems(file=tmp_path / "none") == [missing]
    assert "it is not a regular file" in problems(file=tmp_path)[0]
    monkeypatch.setenv("MAINSTAY_CONFIG", str(tmp_path / "none"))
    assert problems() == [missing]


def test_a_wrong_value_is_refused_where_another_source_has_a_right_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "a.toml", "port = 'x'")
    monkeypatch.setenv("MAINSTAY_PORT", SECRET)
    environment, content = problems({"port": 1}, file)
    assert environment.startswith("Cannot use MAINSTAY_PORT: ")
    assert content.startswith("Cannot use port in ")
    assert SECRET not in environment


# names and descriptions


def test_every_setting_has_a_description_that_names_its_unit() -> None:
    units = {"seconds": "in seconds", "hours": "in hours", "days": "in days", "bytes": "in bytes"}
    for field in setting_fields():
        text = field.description
        assert text.endswith((".", "…")), field.key
        unit = units.get(field.path[-1].rpartition("_")[2])
        assert unit is None or unit in text, field.key


def test_every_variable_in_the_repository_is_known() -> None:
    """A name that is neither a setting nor in the table would stop the service of whoever sets it."""
    here = Path(__file__).resolve()
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [
        ROOT / name for name in listed.split("\0") if name and not name.startswith(("CHANGELOG", "docs/decisions"))
    ]
    table = ROOT / "service" / "config" / "variables.py"
    found = {
        name
        for path in files
        if path.is_file() and path not in {here, table}
        for name in re.findall(r"\bMAINSTAY_[A-Z0-9_]*[A-Z0-9]\b(?!_)", path.read_text(errors="ignore"))
    }
    found -= {"MAINSTAY_FIELD", "MAINSTAY_GROUP__FIELD"}  # placeholders in the docs
    settings = {field.variable for field in setting_fields()}
    assert sorted(found - settings - OTHER_VARIABLES.keys()) == []
    assert sorted(OTHER_VARIABLES.keys() - found - {"MAINSTAY_CONFIG"}) == []
    assert not settings & OTHER_VARIABLES.keys()


# the commands


def test_check_says_where_settings_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MAINSTAY_PORT", "2")
    file = write(tmp_path / "a.toml", "host = 'h'")
    assert check(ConfigOptions(config=file)) == 0
    assert capsys.readouterr().out == f"ok\nsettings file: {file}\nenvironment: MAINSTAY_PORT\n"
    assert check(ConfigOptions(config=file), as_json=True) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"ok": True, "file": str(file), "environment": ["MAINSTAY_PORT"], "problems": []}


def test_check_has_one_line_for_each_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ConfigOptions(config=write(tmp_path / "a.toml", "prot = 1\nport = 'x'"))
    assert check(options) == 1
    assert len(capsys.readouterr().err.splitlines()) == 2
    assert check(options, as_json=True) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is False
    assert len(answer["problems"]) == 2


def test_show_has_every_setting_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MAINSTAY_DATABASE_URL", f"postgresql://u:{SECRET}@h/d")
    file = write(tmp_path / "a.toml", f"[celery]\nbroker_url = 'redis://:{SECRET}@h:1/0?password={SECRET}'")
    assert show(ConfigOptions(config=file)) == 0
    text = capsys.readouterr().out
    assert 'database_url = "postgresql://***@h/d" (MAINSTAY_DATABASE_URL)' in text
    assert f'celery.broker_url = "redis://***@h:1/0?***" (celery.broker_url in {file})' in text
    assert "telemetry.ring_seconds = 900 (default)" in text
    assert show(ConfigOptions(config=file), as_json=True) == 0
    shown = capsys.readouterr().out
    assert SECRET not in text + shown
    rows = {row["name"]: row for row in json.loads(shown)}
    assert list(rows) == [field.key for field in setting_fields()]
    sources = [rows[name]["source"] for name in ("database_url", "celery.broker_url", "port")]
    assert sources == ["environment", "file", "default"]


@pytest.mark.parametrize(
    "url", [f"redis://:{SECRET}/x?y@h", f"postgresql://h/d?password={SECRET}", f"amqp://u:a@{SECRET}@h/\n{SECRET}@"]
)
def test_odd_urls_are_masked_too(url: str) -> None:
    assert SECRET not in mask(url)


def test_settings_with_secrets_do_not_show_them_when_printed() -> None:
    settings = Settings(database_url=f"postgresql://u:{SECRET}@h/d", celery={"broker_url": f"redis://:{SECRET}@h"})
    assert SECRET not in repr(settings)


def test_the_example_file_has_all_defaults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(toml=True) == 0
    text = capsys.readouterr().out
    assert load(file=write(tmp_path / "a.toml", text)).settings == Settings()
    active = re.sub(r"(?m)^#(?=\w)", "", text)
    assert load(file=write(tmp_path / "b.toml", active)).settings == Settings()
    names = {f"{group}.{name}" if isinstance(value, dict) else group
             for group, value in tomllib.loads(active).items()
             for name in (value if isinstance(value, dict) else [group])}  # fmt: skip
    assert names == {field.key for field in setting_fields() if field.default is not None}


@pytest.mark.parametrize("command", ["up", "serve", "worker", "token list", "config show", "config check"])
def test_every_command_that_loads_settings_refuses_a_typo_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setenv("MAINSTAY_TELEMETRY__RING_SECOND", SECRET)
    with pytest.raises(SystemExit) as ended:
        build_app()([*command.split(), "--data-dir", str(tmp_path)])
    assert ended.value.code
    (line,) = capsys.readouterr().err.strip().splitlines()
    name = "MAINSTAY_TELEMETRY__RING_SECOND"
    assert line.endswith(f"Unknown setting {name}. Did you mean {name}S? Fix or unset it.")


def test_commands_read_the_file_of_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "a.toml", "prot = 1")
    with pytest.raises(SystemExit) as ended:
        build_app()(["serve", "--config", str(file)])
    expected = f"mainstay serve: Unknown setting prot in {file}. Did you mean port? Fix or remove it.\n"
    assert (ended.value.code, capsys.readouterr().err) == (2, expected)


def test_variables_that_kubernetes_sets_for_a_service_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    links = {
        "SERVICE_HOST": "10.0.0.7",
        "SERVICE_PORT": "80",
        "SERVICE_PORT_HTTP": "80",
        "PORT": "tcp://10.0.0.7:80",
        "PORT_80_TCP": "tcp://10.0.0.7:80",
        "PORT_80_TCP_ADDR": "10.0.0.7",
    }
    for name, value in links.items():
        monkeypatch.setenv(f"MAINSTAY_{name}", value)
    default = load().settings.port
    monkeypatch.setenv("MAINSTAY_PORT", "9999")
    assert (default, load().settings.port) == (Settings().port, 9999)
