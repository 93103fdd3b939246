"""Values of the options of ``mainstay run``: endpoints, secrets, failure domains, and the protection scheme.

OptionsError(ValueError)   one line that names the option and the reason
"""

from __future__ import annotations

import argparse
import hashlib
import os
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from mainstay.probes.data_dir import read_secret
from mainstay.probes.transport import Transport
from mainstay.recovery import protection_scheme
from mainstay.recovery.checkpoint.storage import check_storage_url
from mainstay.recovery.protection_scheme import ProtectionScheme

_Parsed = TypeVar("_Parsed")

AUTO: Final = -(1 << 40)
"""The value of ``auto``: a number that no user types."""
TOKEN_VARIABLE: Final = "MAINSTAY_JOB_TOKEN"  # noqa: S105 - the name of a variable, not a token


class OptionsError(ValueError):
    """Invalid input; the message is one line that names the option and the reason."""


def parse_scheme(text: str, group_size: int | None) -> ProtectionScheme:
    try:
        return protection_scheme.parse(text, group_size)
    except ValueError as error:
        raise OptionsError(f"--protection, --group-size: {error}") from error


def parse_domains(given: Sequence[str]) -> tuple[tuple[str, str], ...]:
    pairs = [text.partition("=") for text in given]
    for node, equals, domain in pairs:
        if not node or (equals and not domain):
            raise OptionsError(f"--failure-domain {node}{equals}{domain} must look like RACK or NODE=RACK")
    return tuple((node, domain) for node, equals, domain in pairs if equals)


class NodeCount(NamedTuple):
    """Nodes that a job needs, and nodes that it has at most."""

    least: int
    most: int


def parse_nnodes(text: str) -> NodeCount:
    """``N`` or, as torchrun spells a range, ``MIN:MAX``."""
    least, colon, most = text.partition(":")
    if not least.isdecimal() or not (most.isdecimal() or not colon):
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of nodes, or MIN:MAX")
    found = NodeCount(int(least), int(most if colon else least))
    if not 1 <= found.least <= found.most:
        raise argparse.ArgumentTypeError(f"{text!r} must be at least 1" + (", and MAX at least MIN" if colon else ""))
    return found


def parse_steps(text: str) -> int:
    try:
        return AUTO if text == "auto" else int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of steps or auto") from error


def _endpoint(lowest: int, text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not lowest <= int(port) < 65536:
        raise ValueError(f"{text!r} must look like HOST:PORT")
    return host.strip("[]"), int(port)


def _explained(parse: Callable[[str], _Parsed]) -> Callable[[str], _Parsed]:
    """``parse`` with its errors as those whose message argparse shows."""

    def read(text: str) -> _Parsed:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


parse_any_endpoint: Final = _explained(partial(_endpoint, 0))
parse_endpoint: Final = _explained(partial(_endpoint, 1))
parse_service: Final = _explained(lambda url: Transport(url).url)
parse_upload: Final = _explained(check_storage_url)


def require_endpoint(given: tuple[str, int] | None, nnodes: int) -> tuple[str, int]:
    if given is None and nnodes > 1:
        raise OptionsError("--rdzv-endpoint HOST:PORT is needed when there are several nodes")
    host, port = given or ("127.0.0.1", 0)
    if port == 0 and nnodes > 1:
        raise OptionsError("--rdzv-endpoint needs a port that all nodes know")
    return host, port


def find_job_token(path: Path | None, service_token: str, job: str, nnodes: int) -> str:
    """The secret that authenticates the job's processes to each other."""
    given = read_token(path, "--token-file") or os.environ.get(TOKEN_VARIABLE, "")
    if given:
        return given
    if service_token:  # all nodes have it; the job's own secret must not reveal it
        return hashlib.blake2b(job.encode(), key=service_token.encode()[:64], digest_size=16).hexdigest()
    if nnodes > 1:
        raise OptionsError(f"several nodes need a common secret: give --token-file or set {TOKEN_VARIABLE}")
    return secrets.token_hex(16)


def read_token(path: Path | None, option: str) -> str:
    if path is None:
        return ""
    try:
        text = read_secret(path)
    except (OSError, UnicodeDecodeError) as error:
        raise OptionsError(f"{option} {path} cannot be read: {error}") from error
    if not text:
        raise OptionsError(f"{option} {path} is empty")
    return text


def state_directory(job: str) -> Path:
    """The default directory of the files of a launcher of ``job``."""
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "mainstay" / "jobs" / job
