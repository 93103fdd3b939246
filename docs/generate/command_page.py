"""The page of the command line, from the command table and the parser of each command."""

from __future__ import annotations

import argparse
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cyclopts import App

from docs.generate.markdown import code, page, plain, prose, sentence, table
from mainstay.cli import COMMANDS, build_app
from mainstay.probes import cli as node_cli
from mainstay.recovery import options
from mainstay.recovery.agent import server


@dataclass(frozen=True, slots=True)
class CommandOption:
    """One option or argument of a command."""

    names: tuple[str, ...]
    default: str
    description: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandReference:
    """One command without subcommands, or the options of a group itself."""

    words: tuple[str, ...]
    description: str
    options: tuple[CommandOption, ...]

    @property
    def flags(self) -> frozenset[str]:
        """The names that start with a dash."""
        return frozenset(name for option in self.options for name in option.names if name.startswith("-"))


def command_references() -> dict[tuple[str, ...], CommandReference]:
    """Return every command that ``mainstay`` has, by its words."""
    app = build_app()
    parsers = {"run": options.build_parser(), "agent": server.build_parser(), **node_cli.parsers()}
    found: dict[tuple[str, ...], CommandReference] = {}
    for name, entry in COMMANDS.items():
        parser = parsers.get(name)
        for each in [_parsed(name, entry[2], parser)] if parser else _commands_of((name,), app[name], entry[2]):
            found[each.words] = each
    return found


def _commands_of(words: tuple[str, ...], app: App, about: str = "") -> Iterator[CommandReference]:
    subcommands = [name for name in app if not name.startswith("-")]
    arguments = tuple(_arguments(app)) if app.default_command else ()
    if arguments or not subcommands or app.default_command:
        yield CommandReference(words, about or str(app.help or "").split("\n\n", maxsplit=1)[0], arguments)
    for name in subcommands:
        yield from _commands_of((*words, name), app[name])


def _arguments(app: App) -> Iterator[CommandOption]:
    for argument in app.assemble_argument_collection(parse_docstring=True):
        if not argument.show or not argument.parse:
            continue
        default: Any = argument.field_info.default
        required = argument.required or default is argument.field_info.empty
        yield CommandOption(
            names=tuple(argument.names),
            default="*required*" if required else plain(default),
            description=argument.parameter.help or "",
            choices=tuple(_choices(argument.hint)),
        )


def _choices(hint: Any) -> Iterator[str]:
    for each in typing.get_args(hint):
        if isinstance(each, str) and typing.get_origin(hint) is typing.Literal:
            yield each
        else:
            yield from _choices(each)


def _parsed(name: str, about: str, parser: argparse.ArgumentParser) -> CommandReference:
    actions = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]  # noqa: SLF001
    return CommandReference((name,), about, tuple(_action(action) for action in actions))


def _action(action: argparse.Action) -> CommandOption:
    computed = action.dest == "node"  # the host name of the machine that builds the page
    return CommandOption(
        names=tuple(action.option_strings) or (action.dest.upper(),),
        default="*required*" if action.required else "the host name" if computed else plain(action.default),
        description=(action.help or "").replace("%%", "%"),
        choices=tuple(map(str, action.choices or ())),
    )


def commands() -> str:
    """Return the page of the command line."""
    rows = [(f"[`mainstay {name}`](#mainstay-{name})", entry[2], code(entry[1])) for name, entry in COMMANDS.items()]
    parts = [table(("command", "description", "extra"), rows)]
    references = command_references()
    for name in COMMANDS:
        parts.append(f"## mainstay {name}")
        own = references.get((name,))
        parts.append(sentence(own.description if own else COMMANDS[name][2]))
        if own:
            parts.append(_options(own))
        for words, each in references.items():
            if words[0] == name and len(words) > 1:
                parts += [f"### mainstay {' '.join(words)}", prose(each.description), _options(each)]
    about = (
        "`mainstay COMMAND --help` prints the same text. The *extra* is the part of the package that the "
        "command needs: `pip install 'mainstay[EXTRA]'`."
    )
    return page("Commands", about, *parts)


def _capitalize(text: str) -> str:
    """Return the text with a capital letter in front, unless it starts with a URL or code."""
    return text if "://" in text.partition(" ")[0] else f"{text[:1].upper()}{text[1:]}"


def _options(reference: CommandReference) -> str:
    rows = []
    for option in reference.options:
        choices = f" One of {', '.join(code(choice) for choice in option.choices)}." if option.choices else ""
        text = sentence(option.description)
        rows.append((", ".join(code(name) for name in option.names), option.default, f"{_capitalize(text)}{choices}"))
    return table(("option", "default", "description"), rows)
