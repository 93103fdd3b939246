"""Settings from all their sources.

The first of these that has a setting wins:

1. an option of the command,
2. an environment variable, ``MAINSTAY_TELEMETRY__RING_SECONDS=900``,
3. the settings file, ``ring_seconds = 900`` under ``[telemetry]``,
4. the default.

The settings file is a TOML file. Mainstay reads only the first of these:

1. ``--config FILE``,
2. ``MAINSTAY_CONFIG=FILE``,
3. ``mainstay.toml`` in the data directory (``--data-dir``, ``MAINSTAY_DATA_DIR``, or ``~/.mainstay``), if present,
4. ``/etc/mainstay/mainstay.toml``, if present.

Unknown names and invalid values are refused, also where another source has the same setting. No message has a value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource, TomlConfigSettingsSource

from mainstay.service.config.fields import PREFIX, setting_fields, variable_name
from mainstay.service.config.variables import OTHER_VARIABLES
from mainstay.service.settings import Settings

FILE_NAME: Final = "mainstay.toml"
_SERVICE_LINK: Final = re.compile(r"SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?")
SYSTEM_FILE: Final = Path("/etc/mainstay") / FILE_NAME


class InvalidSettingsError(Exception):
    """Settings that cannot be used; ``problems`` has one line for each, none of them with a value."""

    def __init__(self, problems: list[str]) -> None:
        more = len(problems) - 1
        super().__init__(problems[0] + (f" ({more} more: run 'mainstay config check')" if more else ""))
        self.problems = problems


@dataclass(frozen=True)
class SettingsSource:
    """What one source sets: ``data`` is nested by group.

    ``name`` returns how the source calls a setting; ``known`` has all such names by what tells them apart.
    """

    kind: str
    data: dict[str, Any] = field(repr=False)
    name: Callable[[tuple[str, ...]], str] = field(repr=False)
    known: Mapping[str, str]
    fix: str

    def has(self, path: tuple[str, ...]) -> bool:
        found: Any = self.data
        for part in path:
            if not isinstance(found, dict) or part not in found:
                return False
            found = found[part]
        return True

    def problems(self) -> list[str]:
        """One line for each unknown name and each invalid value."""
        try:
            Settings(**self.data)
        except ValidationError as error:
            return [self._problem(detail["type"], detail["loc"], detail["msg"]) for detail in error.errors()]
        return []

    def _problem(self, kind: str, loc: tuple[int | str, ...], message: str) -> str:
        name = self.name(tuple(str(part) for part in loc))
        if kind != "extra_forbidden":
            return f"Cannot use {name}: {message.replace('Input should', 'it must')}. {self.fix}"
        near = get_close_matches(name.removeprefix(PREFIX).split(" ")[0], self.known, n=1)
        hint = f"Did you mean {self.known[near[0]]}?" if near else "'mainstay config show --toml' lists all settings."
        return f"Unknown setting {name}. {hint} {self.fix}"


@dataclass(frozen=True)
class LoadedSettings:
    """Effective settings, and where they come from: ``sources`` are ordered from the strongest to the weakest."""

    settings: Settings
    sources: tuple[SettingsSource, ...]
    file: Path | None

    def source_of(self, path: tuple[str, ...]) -> SettingsSource | None:
        """The source whose value is effective; None: the default is."""
        return next((source for source in self.sources if source.has(path)), None)


def load(options: Mapping[str, Any] | None = None, file: Path | None = None) -> LoadedSettings:
    """Settings from all sources.

    Args:
        options: settings given on the command line, nested by group.
        file: the settings file if one was given on the command line.

    Raises:
        InvalidSettingsError: an unknown name, an invalid value, or a settings file that cannot be read.
    """
    given = _from_options(dict(options or {}))
    environment = _from_environment()
    data_dir = (
        given.data.get("data_dir") or environment.data.get("data_dir") or Settings.model_fields["data_dir"].default
    )
    path, content = _from_file(file, Path(data_dir))
    sources = (given, environment, content)
    problems = [problem for source in sources for problem in source.problems()]
    if problems:
        raise InvalidSettingsError(problems)
    merged: dict[str, Any] = {}
    for source in reversed(sources):
        merged = _merge(merged, source.data)
    return LoadedSettings(Settings(**merged), sources, path)


def _merge(weak: dict[str, Any], strong: dict[str, Any]) -> dict[str, Any]:
    return weak | {k: _merge(weak.get(k, {}), v) if isinstance(v, dict) else v for k, v in strong.items()}


def _from_options(data: dict[str, Any]) -> SettingsSource:
    return SettingsSource("option", data, lambda path: "--" + path[-1].replace("_", "-"), {}, "Give another value.")


class _Environment(EnvSettingsSource):
    """Also yields the variables that belong to no setting and no other part of Mainstay, so that they are refused."""

    def _load_env_vars(self) -> Mapping[str, str | None]:
        variables = super()._load_env_vars()
        return {name: value for name, value in variables.items() if not _is_service_link(name, value)}

    def __call__(self) -> dict[str, Any]:
        prefix = PREFIX.lower()
        names = (name.removeprefix(prefix) for name in self.env_vars if name.startswith(prefix))
        return {name: "" for name in names if self._is_unknown(name)} | super().__call__()

    def _is_unknown(self, name: str) -> bool:
        first, _, rest = name.partition("__")
        info = Settings.model_fields.get(first)
        is_known = info is not None and (not rest or hasattr(info.annotation, "model_fields"))
        return not is_known and variable_name((name,)) not in OTHER_VARIABLES


def _is_service_link(name: str, value: str | None) -> bool:
    """Whether Kubernetes set the variable in every pod beside a Service that is called ``mainstay``.

    Its Docker-style links are no settings, but look like some: the port is ``tcp://10.0.0.7:80``.
    """
    is_address = re.match(r"(tcp|udp|sctp)://", value or "")
    return bool(_SERVICE_LINK.fullmatch(name.upper().removeprefix(PREFIX))) and (
        name.upper() != f"{PREFIX}PORT" or bool(is_address)
    )


def _from_environment() -> SettingsSource:
    names = (*(setting.variable for setting in setting_fields()), *OTHER_VARIABLES)
    known = {name.removeprefix(PREFIX): name for name in names}
    return SettingsSource("environment", _Environment(Settings)(), variable_name, known, "Fix or unset it.")


def _from_file(given: Path | None, data_dir: Path) -> tuple[Path | None, SettingsSource]:
    """The settings file, if there is one, and what it sets."""
    try:
        path = _find_file(given, data_dir.expanduser())
        data = TomlConfigSettingsSource(Settings, path)()
    except OSError as error:
        raise _unreadable(error.filename, error.strerror) from error
    except ValueError as error:
        raise _unreadable(path, error) from error
    keys = [setting.key for setting in setting_fields()]
    known = {name: name for name in (*keys, *Settings.model_fields)}
    return path, SettingsSource("file", data, lambda loc: f"{'.'.join(loc)} in {path}", known, "Fix or remove it.")


def _find_file(given: Path | None, data_dir: Path) -> Path | None:
    variable = os.environ.get("MAINSTAY_CONFIG")
    named = given or (Path(variable) if variable else None)
    if named is None:
        return next((path for path in (data_dir / FILE_NAME, SYSTEM_FILE) if path.exists()), None)
    named.stat()
    if not named.is_file():
        raise _unreadable(named, "it is not a regular file")
    return named


def _unreadable(path: object, why: object) -> InvalidSettingsError:
    return InvalidSettingsError([f"Cannot read settings file {path}: {why}. Fix the file or name another one."])
