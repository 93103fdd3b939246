"""What ``mainstay backup`` writes, and what ``mainstay restore`` refuses before it changes anything."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mainstay.service.backup.backup import write_backup
from mainstay.service.backup.databases import copy_sqlite, dump_postgres
from mainstay.service.backup.manifest import BackupError
from mainstay.service.backup.restore import restore_backup
from mainstay.service.common.db import Database
from mainstay.service.config.load import load
from mainstay.service.server import CannotServeError, lock_data_dir
from mainstay.service.settings import Settings
from mainstay.service.telemetry.blocks import BlockKind, StoredBlock
from mainstay.service.telemetry.blocks_postgres import PostgresBlockStore
from mainstay.service.telemetry.blocks_sqlite import SqliteBlockStore
from tests.commands import run_here

NOW = 1_800_000_000.0
BLOCK = StoredBlock("n1", BlockKind.TIME, "s", 1, NOW, NOW + 1, b"body")


@pytest.fixture(autouse=True)
def private() -> Iterator[None]:
    """As the commands do first (``keep_files_private``)."""
    before = os.umask(0o077)
    yield
    os.umask(before)


def fresh(place: Path, **changes: Any) -> Settings:
    return Settings(data_dir=place, **changes)


def settings_with_state(place: Path, migrated_file: Path) -> Settings:
    """A data directory with a database, a block, a token, and a settings file."""
    place.mkdir(mode=0o700)
    (place / "mainstay.db").write_bytes(migrated_file.read_bytes())
    (place / "mainstay.db").chmod(0o600)
    (place / "admin-token").write_text("secret\n")
    (place / "mainstay.toml").write_text("port = 1\n")
    store = SqliteBlockStore(place / "blocks")
    store.append([BLOCK])
    store.close()
    return fresh(place)


@pytest.fixture
def settings(tmp_path: Path, migrated_file: Path) -> Settings:
    return settings_with_state(tmp_path / "data", migrated_file)


@pytest.fixture
def copy(settings: Settings, tmp_path: Path) -> Path:
    write_backup(settings, tmp_path / "copy", telemetry=True, now=NOW)
    return tmp_path / "copy"


def change(copy: Path, **fields: Any) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(manifest | fields))


def blocks_of(place: Path) -> list[StoredBlock]:
    store = SqliteBlockStore(place / "blocks")
    found = list(store.read(NOW, NOW + 1, kinds=[BlockKind.TIME]))
    store.close()
    return found


def test_the_manifest_names_every_file_and_all_are_private(copy: Path, settings: Settings) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    files = {path.relative_to(copy).as_posix(): path for path in copy.rglob("*") if path.is_file()}
    listed = {file["name"]: file for file in manifest["files"]}
    assert set(listed) == set(files) - {"manifest.json"}
    assert set(listed) == {"mainstay.db", "admin-token", "mainstay.toml", f"blocks/blocks-{BLOCK.hour}.db"}
    for name, file in listed.items():
        body = files[name].read_bytes()
        assert (file["size"], file["sha256"]) == (len(body), hashlib.sha256(body).hexdigest())
    assert manifest["created_at"] == "2027-01-15T08:00:00+00:00"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o700
    assert sorted(path.name for path in copy.parent.iterdir()) == ["copy", settings.data_dir.name]


@pytest.mark.parametrize("name", ["b", "b.tar"])
@pytest.mark.parametrize("telemetry", [True, False])
def test_a_restored_directory_holds_the_same(tmp_path: Path, settings: Settings, name: str, *, telemetry: bool) -> None:
    write_backup(settings, tmp_path / name, telemetry=telemetry, now=NOW)
    target = fresh(tmp_path / "target")
    restore_backup(target, tmp_path / name, force=False)
    assert (target.data_dir / "admin-token").read_text() == "secret\n"
    assert load({"data_dir": target.data_dir}, None).settings.port == 1
    assert blocks_of(target.data_dir) == ([BLOCK] if telemetry else [])
    names = {path.name for path in target.data_dir.iterdir()}
    assert names == {"mainstay.db", "mainstay.toml", "admin-token", "blocks", "serve.lock"} | {
        path for path in names if path.startswith("mainstay.db-")
    }


def test_a_copy_is_of_one_moment_while_others_write(tmp_path: Path) -> None:
    """Two tables that always change together have equally many rows in each copy."""
    with closing(sqlite3.connect(tmp_path / "source.db", check_same_thread=False)) as writer:
        writer.executescript("PRAGMA journal_mode=WAL; CREATE TABLE a(x); CREATE TABLE b(x);")
        over = threading.Event()

        def write() -> None:
            while not over.is_set():
                with writer:
                    writer.executemany("INSERT INTO a VALUES (?)", [("x" * 2000,)] * 20)
                    writer.executemany("INSERT INTO b VALUES (?)", [("x" * 2000,)] * 20)

        thread = threading.Thread(target=write)
        thread.start()
        for number in range(10):
            copy_sqlite(tmp_path / "source.db", tmp_path / f"{number}.db", check=True)
        over.set()
        thread.join()
    for number in range(10):
        with closing(sqlite3.connect(tmp_path / f"{number}.db")) as made:
            assert len({made.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in "ab"}) == 1
            assert made.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def spoil_file(copy: Path) -> None:
    (copy / "admin-token").write_text("other!\n")


def lose_file(copy: Path) -> None:
    (copy / "admin-token").unlink()


@pytest.mark.parametrize(("spoil", "message"), [
    (spoil_file, "admin-token of the backup is damaged"),
    (lose_file, "admin-token is missing"),
    (lambda copy: (copy / "manifest.json").unlink(), "manifest.json is missing"),
    (lambda copy: (copy / "manifest.json").write_text("{"), "manifest.json of the backup cannot be read"),
    (lambda copy: change(copy, schema_revision="9999"), "newer version of Mainstay (0.1.0, schema 9999)"),
    (lambda copy: change(copy, database="postgresql"), "restores into postgresql only, not into sqlite"),
    (lambda copy: change(copy, files=[{"name": "../x", "size": 1, "sha256": ""}]), "cannot be read"),
    (lambda copy: change(copy, files=[]), "holds no mainstay.db"),
])  # fmt: skip
def test_a_backup_that_does_not_fit_is_refused(
    tmp_path: Path, copy: Path, spoil: Callable[[Path], Any], message: str
) -> None:
    spoil(copy)
    target = fresh(tmp_path / "target")
    with pytest.raises(BackupError) as error:
        restore_backup(target, copy, force=True)
    assert message in str(error.value)
    left = {path.name for path in target.data_dir.iterdir()} if target.data_dir.exists() else set()
    assert left <= {"serve.lock"}


def test_a_tar_file_that_is_cut_off_is_refused(tmp_path: Path, settings: Settings) -> None:
    write_backup(settings, tmp_path / "b.tar", telemetry=True, now=NOW)
    body = (tmp_path / "b.tar").read_bytes()
    (tmp_path / "b.tar").write_bytes(body[: len(body) // 2])
    with pytest.raises(BackupError, match="no complete backup"):
        restore_backup(fresh(tmp_path / "target"), tmp_path / "b.tar", force=False)


def test_state_is_replaced_only_by_force(tmp_path: Path, copy: Path, migrated_file: Path) -> None:
    target = settings_with_state(tmp_path / "other", migrated_file)
    (target.data_dir / "admin-token").write_text("another\n")
    (target.data_dir / "mainstay.toml").write_text("port = 2\n")
    with pytest.raises(BackupError, match=r"the target holds admin-token, .*--force"):
        restore_backup(target, copy, force=False)
    assert (target.data_dir / "admin-token").read_text() == "another\n"
    restore_backup(target, copy, force=True)
    assert (target.data_dir / "admin-token").read_text() == "secret\n"
    assert load({"data_dir": target.data_dir}, None).settings.port == 2, "a settings file that is there stays"


def test_a_running_service_is_not_replaced(tmp_path: Path, copy: Path) -> None:
    target = fresh(tmp_path / "target")
    target.data_dir.mkdir(mode=0o700)
    with lock_data_dir(target.data_dir), pytest.raises(CannotServeError, match="is in use by process"):
        restore_backup(target, copy, force=True)


def test_nothing_is_overwritten_and_nothing_is_made_of_nothing(tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(BackupError, match="exists"):
        write_backup(settings, tmp_path / "there", telemetry=True, now=NOW)
    with pytest.raises(BackupError, match="there is no database at"):
        write_backup(fresh(tmp_path / "empty"), tmp_path / "new", telemetry=True, now=NOW)
    assert not (tmp_path / "empty").exists()


def test_the_commands_print_json_and_one_line_of_error(tmp_path: Path, settings: Settings) -> None:
    place, target = str(tmp_path / "copy"), ("--data-dir", str(tmp_path / "target"))
    done = run_here("backup", place, "--data-dir", str(settings.data_dir), "--no-telemetry", "--json")
    assert json.loads(done.stdout)["telemetry"] is False
    assert run_here("restore", place, *target).stdout.startswith("Restored into")
    done = run_here("restore", place, *target)
    assert done.returncode == 1
    assert done.stderr.startswith("mainstay restore: the target holds ")
    assert done.stderr.count("\n") == 1


# PostgreSQL


@pytest.fixture
def postgres(tmp_path: Path, databases: Any, migrated_template: str) -> Iterator[Settings]:
    url = databases.make(template=migrated_template)
    yield fresh(tmp_path / "data", database_url=url)
    databases.drop(url)


@pytest.mark.postgres
@pytest.mark.parametrize("telemetry", [True, False])
def test_postgres_is_replaced_as_a_whole(
    tmp_path: Path, postgres: Settings, postgres_url: str, *, telemetry: bool
) -> None:
    database = Database(postgres.resolved_database_url)
    PostgresBlockStore(database.engine).append([BLOCK])
    database.close()
    write_backup(postgres, tmp_path / "copy", telemetry=telemetry, now=NOW)
    target = fresh(tmp_path / "target", database_url=postgres_url)
    restore_backup(target, tmp_path / "copy", force=False)
    with pytest.raises(BackupError, match="table"):
        restore_backup(target, tmp_path / "copy", force=False)
    database = Database(postgres_url)
    with database.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE later (x int)")
    restore_backup(target, tmp_path / "copy", force=True)
    store = PostgresBlockStore(database.engine)
    assert list(store.read(NOW, NOW + 1, kinds=[BlockKind.TIME])) == ([BLOCK] if telemetry else [])
    with database.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT to_regclass('later')").scalar_one() is None
    database.close()


@pytest.mark.postgres
def test_a_missing_program_and_an_unreadable_dump_are_named(
    tmp_path: Path, postgres: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_backup(postgres, tmp_path / "copy", telemetry=False, now=NOW)
    dump = b"no dump"
    (tmp_path / "copy" / "database.dump").write_bytes(dump)
    file = {"name": "database.dump", "size": len(dump), "sha256": hashlib.sha256(dump).hexdigest()}
    change(tmp_path / "copy", files=[file])
    with pytest.raises(BackupError, match=r"pg_restore failed: .*archive"):
        restore_backup(postgres, tmp_path / "copy", force=True)
    database = Database(postgres.resolved_database_url)
    with database.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM alembic_version").scalar_one() == 1
    database.close()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackupError, match="pg_dump is missing: install"):
        write_backup(postgres, tmp_path / "second", telemetry=True, now=NOW)
    assert not (tmp_path / "second").exists()


def test_no_password_is_on_a_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "pg_dump"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\necho "$PGPASSWORD" > {tmp_path}/password\n')
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    database = Database("postgresql://user:se%20cret@host:5/name?sslmode=require")
    dump_postgres(database, tmp_path / "dump", telemetry=True)
    assert (tmp_path / "password").read_text() == "se cret\n"
    said = (tmp_path / "arguments").read_text()
    assert "cret" not in said
    assert {"user=user", "host=host", "port=5", "dbname=name", "sslmode=require"} <= {
        word.removeprefix("--dbname=") for word in said.split()
    }


@pytest.mark.postgres
def test_a_new_hour_does_not_wait_for_a_dump(postgres_url: str) -> None:
    """``pg_dump`` holds this lock on every table until it ends; frames of the next hour must be stored meanwhile."""
    database = Database(postgres_url)
    store = PostgresBlockStore(database.engine)
    with database.engine.connect() as dump:
        dump.exec_driver_sql("LOCK TABLE blocks IN ACCESS SHARE MODE")
        with database.engine.begin() as impatient:
            impatient.exec_driver_sql(f"ALTER DATABASE \"{postgres_url.rsplit('/', 1)[1]}\" SET lock_timeout = '2s'")
        other = Database(postgres_url)
        assert PostgresBlockStore(other.engine).append([BLOCK]) == [True]
        other.close()
    assert store.hours() == [BLOCK.hour]
    database.close()
