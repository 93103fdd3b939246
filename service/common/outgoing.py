"""Which addresses the service itself connects to: a URL that a user gave must not lead into what only the host reaches.

The check is made where a connection is made, on the very address that is used: a name may have resolved to another one
a moment before. Private IPv4 networks and loopback are allowed, because exporters run there.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final, Self

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import NewConnectionError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_METADATA: Final = frozenset(
    map(
        ip_address,
        ("169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"),
    )
)
"""Metadata services of AWS, Google, Azure, Oracle, and Alibaba: they hand out the credentials of the host."""
_CLOSED: Final[dict[str, tuple[Network, ...]]] = {
    "unique-local": (ip_network("fc00::/7"), ip_network("fec0::/10")),
    "shared (RFC 6598)": (ip_network("100.64.0.0/10"),),
    "IPv4-mapped or translated": tuple(
        map(ip_network, ("::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32"))
    ),
}
"""Networks that need a place in ``sources.allowed_networks``."""
_NAT64: Final = (ip_network("64:ff9b::/96"), ip_network("64:ff9b:1::/48"))


class RefusedAddressError(ValueError):
    """The address must not be connected to; the message says why."""


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """Which addresses may be connected to; ``allowed`` opens networks that are closed otherwise."""

    allowed: tuple[Network, ...] = ()

    @classmethod
    def from_texts(cls, networks: Sequence[str]) -> AddressPolicy:
        return cls(tuple(map(ip_network, networks)))

    def check(self, text: str) -> None:
        """Check one numeric address, as a socket names it.

        Raises:
            RefusedAddressError: it is link-local, multicast, unspecified, reserved, a metadata service, or in a closed
                network that is not allowed; also where an IPv6 address only wraps such an IPv4 address.
        """
        address = ip_address(text.partition("%")[0])
        for form in (address, _embedded(address)):
            if form is not None and (why := _never(form)):
                raise RefusedAddressError(f"{text} is {why}")
        if any(address in network for network in self.allowed):
            return
        for what, networks in _CLOSED.items():
            if any(address in network for network in networks):
                raise RefusedAddressError(f"{text} is {what}: add its network to sources.allowed_networks")


def _never(address: Address) -> str:
    if address in _METADATA:
        return "a metadata service"
    rules = {
        "link-local": address.is_link_local,
        "multicast": address.is_multicast,
        "unspecified": address.is_unspecified or (address.version == 4 and address in _THIS_HOST),
        "reserved": address.is_reserved and not address.is_loopback and _embedded(address) is None,
    }
    return next((f"no address of a server ({what})" for what, applies in rules.items() if applies), "")


_THIS_HOST: Final = ip_network("0.0.0.0/8")


def is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _embedded(address: Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address leads to, or None."""
    if not isinstance(address, IPv6Address):
        return None
    if any(address in network for network in _NAT64):
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)


class TimeLimit:
    """Shuts a connection down when the time is over.

    The timeouts of a socket limit each read, not a slow peer as a whole. A duplicate of the socket is shut down, since
    a TLS handshake takes the descriptor from the original.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._timer = threading.Timer(seconds, self._shut_down)
        self._timer.daemon = True
        self._duplicate: socket.socket | None = None

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._duplicate is not None:
            self._duplicate.close()

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._deadline

    @property
    def remaining(self) -> float:
        return max(0.001, self._deadline - time.monotonic())

    def watch(self, sock: socket.socket) -> None:
        """Shut down this connection too, at once where the time is over."""
        self._duplicate = sock.dup()
        if self.is_over:
            self._shut_down()

    def _shut_down(self) -> None:
        if self._duplicate is not None:
            with suppress(OSError):
                self._duplicate.shutdown(socket.SHUT_RDWR)


def connect(host: str, port: int, policy: AddressPolicy, limit: TimeLimit) -> socket.socket:
    """Connect to the first address of a host that the policy allows and that answers.

    Args:
        host: a name, or a numeric address.
        port: TCP port.
        policy: the addresses that may be connected to.
        limit: for the connection as a whole; resolving the name is the system's affair.

    Raises:
        OSError: no address answers, or the name has none.
        RefusedAddressError: the policy refuses the last address.
    """
    failure: OSError | RefusedAddressError = OSError("the name has no address")
    for family, kind, protocol, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            policy.check(str(place[0]))
            sock.settimeout(limit.remaining)
            sock.connect(place)
        except (OSError, RefusedAddressError) as error:
            failure = error
            sock.close()
        else:
            sock.settimeout(limit.seconds)
            limit.watch(sock)
            return sock
    raise failure


class _Guarded(HTTPConnection):
    """Resolves, checks, and connects to what was checked."""

    def __init__(self, *arguments: Any, policy: AddressPolicy, limit: TimeLimit, **options: Any) -> None:
        super().__init__(*arguments, timeout=limit.seconds, **options)
        self._policy, self._limit = policy, limit

    def _new_conn(self) -> socket.socket:
        try:
            return connect(self.host, self.port, self._policy, self._limit)
        except (OSError, RefusedAddressError) as error:
            raise NewConnectionError(self, str(error)) from error


class GuardedHTTPConnection(_Guarded):
    """HTTP to addresses that ``policy`` allows."""


class GuardedHTTPSConnection(_Guarded, HTTPSConnection):
    """HTTPS to addresses that ``policy`` allows."""
