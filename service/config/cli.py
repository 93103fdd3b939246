"""``mainstay config``: check and show the settings of the service."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from cyclopts import App

from mainstay.detectors.cli_errors import AsJson, Flag
from mainstay.service.config.options import ConfigOptions

if TYPE_CHECKING:  # commands import what they need when they run
    from mainstay.service.config.load import LoadedSettings

config = App(name="config", help="Check and show the settings of the service.")


@config.command
def check(options: ConfigOptions = ConfigOptions(), *, as_json: AsJson = False) -> int:
    """Check environment variables and settings file; the exit code is 1 if a setting is invalid."""
    loaded, problems = _load(options)
    file = str(loaded.file) if loaded and loaded.file else None
    variables = [field["variable"] for field in _effective(loaded) if field["source"] == "environment"]
    if as_json:
        print(json.dumps({"ok": not problems, "file": file, "environment": variables, "problems": problems}, indent=2))
    elif not problems:
        print(f"ok\nsettings file: {file or 'none'}\nenvironment: {', '.join(variables) or 'no settings'}")
    else:
        print("\n".join(problems), file=sys.stderr)
    return 1 if problems else 0


@config.command
def show(
    options: ConfigOptions = ConfigOptions(),
    *,
    as_json: AsJson = False,
    toml: Flag = False,
) -> int:
    """Show every setting with its value, where the value comes from, and what it means. Secrets are masked.

    Parameters
    ----------
    toml
        Print an example settings file with all defaults.
    """
    from mainstay.service.config.fields import example_file

    if toml:
        print(example_file(), end="")
        return 0
    loaded, problems = _load(options)
    if problems:
        print("\n".join(problems), file=sys.stderr)
        return 1
    settings = _effective(loaded)
    if as_json:
        print(json.dumps(settings, indent=2))
        return 0
    for setting in settings:
        value = "not set" if setting["value"] is None else json.dumps(setting["value"], ensure_ascii=False)
        print(f"{setting['name']} = {value} ({setting['from']})\n    {setting['description']}")
    return 0


def _load(options: ConfigOptions) -> tuple[LoadedSettings | None, list[str]]:
    from mainstay.service.config.load import InvalidSettingsError, load

    try:
        return load({"data_dir": options.data_dir} if options.data_dir else {}, options.config), []
    except InvalidSettingsError as error:
        return None, error.problems


def _effective(loaded: LoadedSettings | None) -> list[dict[str, Any]]:
    """Every setting with its value and source, as JSON can hold it."""
    from mainstay.service.config.fields import setting_fields

    if loaded is None:
        return []
    found = []
    for field in setting_fields():
        source = loaded.source_of(field.path)
        row = {"name": field.key, "variable": field.variable, "value": field.value(loaded.settings)}
        row |= {"default": field.default, "source": source.kind if source else "default"}
        row |= {"from": source.name(field.path) if source else "default", "description": field.description}
        found.append(row)
    return found
