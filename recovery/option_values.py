"""Values of the options of ``mainstay run``: endpoints, secrets, failure domains, and the protection scheme.

OptionsError(ValueError)   one line that names the option and the reason
"""

from __future__ import annotations

import argparse
import hashlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from mainstay.probes.data_dir import read_secret
from mainstay.probes.transport import Transport
from mainstay.recovery import protection_scheme
from mainstay.recovery.checkpoint.storage import check_storage_url
from mainstay.recovery.protection_scheme import ProtectionScheme

TOKEN_VARIABLE: Final = "MAINSTAY_JOB_TOKEN"  # noqa: S105 - the name of a variable, not a token


class OptionsError(ValueError):
    """Invalid input; the message is one line that names the option and the reason."""


def parse_scheme(text: str, group_size: int | None) -> ProtectionScheme:
    try:
        return protection_scheme.parse(text, group_size)
    except ValueError as error:
        raise OptionsError(f"--protection, --group-size: {error}") from error


def parse_upload(url: str | None) -> str | None:
    try:
        return None if url is None else check_storage_url(url)
    except ValueError as error:
        raise OptionsError(f"--checkpoint-upload: {error}") from error


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


def parse_endpoint(text: str | None, nnodes: int) -> tuple[str, int]:
    if text is None:
        if nnodes > 1:
            raise OptionsError("--rdzv-endpoint HOST:PORT is needed when there are several nodes")
        return "127.0.0.1", 0
    host, port = parse_host_and_port("--rdzv-endpoint", text, 0)
    if port == 0 and nnodes > 1:
        raise OptionsError("--rdzv-endpoint needs a port that all nodes know")
    return host, port


def parse_host_and_port(option: str, text: str, lowest: int = 1) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not lowest <= int(port) < 65536:
        raise OptionsError(f"{option} {text!r} must look like HOST:PORT")
    return host.strip("[]"), int(port)


def parse_launcher_endpoint(text: str | None) -> tuple[str, int] | None:
    return None if text is None else parse_host_and_port("--launcher-endpoint", text)


def parse_service(url: str | None) -> str | None:
    try:
        return None if url is None else Transport(url).url
    except ValueError as error:
        raise OptionsError(f"--service: {error}") from error


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
