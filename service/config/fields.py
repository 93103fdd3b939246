"""Every setting with its names, default and description: what commands, reference and example file are made of."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from mainstay.service.settings import Settings

PREFIX: Final = "MAINSTAY_"


@dataclass(frozen=True)
class SettingField:
    """One setting. ``path`` leads to it: ``("telemetry", "ring_seconds")``."""

    path: tuple[str, ...]
    group: type[BaseModel]
    info: FieldInfo

    @property
    def key(self) -> str:
        """The name in a settings file."""
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        """The name in the environment."""
        return variable_name(self.path)

    @property
    def description(self) -> str:
        """What it means, in one line."""
        return " ".join((self.info.description or "").split())

    @property
    def default(self) -> Any:
        return _plain(self.info.default)

    def value(self, settings: Settings) -> Any:
        """The effective value as it may be printed: a secret is masked."""
        found: Any = settings
        for name in self.path:
            found = getattr(found, name)
        return _plain(found) if self.info.repr else mask(str(found))


def setting_fields(model: type[BaseModel] = Settings, path: tuple[str, ...] = ()) -> Iterator[SettingField]:
    """All settings in the order in which they are declared, those without a group first."""
    for name, info in model.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from setting_fields(info.annotation, (*path, name))
        else:
            yield SettingField((*path, name), model, info)


def variable_name(path: tuple[str, ...]) -> str:
    return PREFIX + "__".join(path).upper()


def mask(url: str) -> str:
    """``url`` without user, password and query, any of which may be secret."""
    return re.sub(r"\?.*", "?***", re.sub(r"//.*@", "//***@", url, flags=re.DOTALL), flags=re.DOTALL)


def _plain(value: Any) -> Any:
    """As JSON and TOML can hold it."""
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value


def example_file() -> str:
    """A settings file in which every setting is a comment with its default."""
    lines = ["# Settings of the Mainstay service. Remove the # before a setting to change it."]
    heading = ""
    for setting in setting_fields():
        *group, name = setting.path
        if ".".join(group) != heading:
            heading = ".".join(group)
            lines += ["", f"# {inspect.getdoc(setting.group)}", f"[{heading}]"]
        value = json.dumps(setting.default, ensure_ascii=False)
        lines += ["", f"# {setting.description}"]
        lines.append(f"# {name} is not set." if setting.default is None else f"#{name} = {value}")
    return "\n".join(lines) + "\n"
