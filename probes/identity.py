"""Who this node is: what it reports about itself, and the credential that it was given when it enrolled.

A join token is used once, for a credential that may write only this node's data; it is kept in a file that only its
owner can read, and is used again for as long as the service and the name stay the same.
"""

from __future__ import annotations

import logging
import os
import socket
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import freedesktop_os_release
from typing import Final

import msgspec

from mainstay.probes.core_types import validate_name
from mainstay.probes.decoding import UNREADABLE
from mainstay.probes.durable_files import write_durably
from mainstay.probes.samplers.base import DeviceIdentity
from mainstay.probes.signals import Catalog
from mainstay.probes.transport import RetryableError, TlsFiles, Transport

log = logging.getLogger(__name__)

_CREDENTIAL: Final = "credential.json"
MAX_SWITCHES: Final = 8
"""Layers of a network above a node; three are usual (leaf, spine, core)."""


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``PUT /v1/nodes/{name}``."""

    hostname: str
    os: str
    kernel: str
    version: str
    boot_id: str
    cohort: str
    cpu_count: int
    memory_bytes: int
    devices: tuple[DeviceIdentity, ...]
    catalog: Catalog
    started_at: float
    rack: str = ""
    switches: tuple[str, ...] = ()
    """The network switches above it, nearest first."""
    power_domain: str = ""
    booted_at: float | None = None


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the enrollment: valid for this node at this service."""

    service: str
    node: str
    token: str


class _Enrolled(msgspec.Struct):
    node: str
    token: str


def default_name() -> str:
    """The host's name, as a legal id.

    Raises:
        ValueError: it has none that would do; the operator must choose.
    """
    return validate_name(socket.gethostname(), "host name")


def default_cohort(devices: tuple[DeviceIdentity, ...]) -> str:
    """Nodes that may be compared: same cards, same number of them; hosts without cards by processor."""
    gpus = [device for device in devices if device.kind == "gpu"]
    model = gpus[0].model if gpus else devices[0].model if devices else "unknown"
    count = len(gpus) or os.cpu_count() or 1
    words = "".join(letter if letter.isalnum() else "-" for letter in model).strip("-")
    return f"{count}x-{'-'.join(filter(None, words.split('-')))}"[:128].rstrip("-")


def describe_node(
    devices: tuple[DeviceIdentity, ...],
    catalog: Catalog,
    *,
    cohort: str | None,
    started_at: float,
    rack: str = "",
    switches: tuple[str, ...] = (),
    power_domain: str = "",
) -> NodeReport:
    """The report of this machine with the devices that its samplers found."""
    uname = os.uname()
    return NodeReport(
        hostname=uname.nodename,
        os=_os_name(),
        kernel=uname.release,
        version=_version(),
        boot_id=boot_id(),
        cohort=cohort or default_cohort(devices),
        cpu_count=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        devices=devices,
        catalog=catalog,
        started_at=started_at,
        rack=rack,
        switches=switches,
        power_domain=power_domain,
        booted_at=_booted_at(),
    )


def read_switches(text: str) -> tuple[str, ...]:
    """The switches above this node as the operator wrote them: ``leaf-3,spine-1``, nearest first.

    Raises:
        ValueError: one is no legal id, stands twice, or there are more than ``MAX_SWITCHES``.
    """
    switches = tuple(validate_name(part.strip(), "--switches") for part in text.split(",") if part.strip())
    if len(switches) > MAX_SWITCHES:
        raise ValueError(f"--switches names {len(switches)} switches, at most {MAX_SWITCHES} stand above a node")
    if len(set(switches)) != len(switches):
        raise ValueError(f"--switches {text!r} names a switch twice")
    return switches


def boot_id() -> str:
    """What names this boot; the same until the next."""
    return _read(Path("/proc/sys/kernel/random/boot_id")) or "unknown"


def enroll(url: str, name: str, join_token: str, data_dir: Path, tls: TlsFiles | None = None) -> str:
    """The node's own token: the stored one if there is one for this service and name, else a new one.

    Raises:
        RejectedError: the service does not accept the join token.
        RetryableError: the service cannot be reached.
    """
    stored = load_credential(url, name, data_dir)
    if stored is not None:
        return stored
    transport = Transport(url, join_token, tls=tls)
    try:
        answer = msgspec.convert(transport.json("POST", "/nodes:enroll", {"name": name}), _Enrolled)
    except msgspec.ValidationError as error:
        raise RetryableError(f"cannot read the answer to the enrollment: {error}") from error
    finally:
        transport.close()
    credential = Credential(service=url, node=answer.node, token=answer.token)
    write_durably(data_dir / _CREDENTIAL, msgspec.json.encode(credential), mode=0o600)
    log.info("enrolled as %s at %s", answer.node, url)
    return answer.token


def load_credential(url: str, name: str, data_dir: Path) -> str | None:
    """Return the stored token for this service and name, if the node is enrolled."""
    try:
        credential = msgspec.json.decode((data_dir / _CREDENTIAL).read_bytes(), type=Credential)
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        log.warning("%s is unreadable (%s): enrolling again", data_dir / _CREDENTIAL, error)
        return None
    return credential.token if (credential.service, credential.node) == (url, name) else None


def _booted_at() -> float | None:
    for line in _read(Path("/proc/stat")).splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return None


def _version() -> str:
    try:
        return version("mainstay")
    except PackageNotFoundError:  # run from a bare checkout
        return "0"


def _os_name() -> str:
    try:
        return freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return os.uname().sysname


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
