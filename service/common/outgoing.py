"""Which addresses the service itself connects to: a URL that a user gave must not lead into what only the host reaches.

The check is made where a connection is made, on the very address that is used: a name may have resolved to another one
a moment before. Private IPv4 networks and loopback are allowed, because exporters run there.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final

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
    return next((f"no address of an exporter ({what})" for what, applies in rules.items() if applies), "")


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


class _Guarded(HTTPConnection):
    """Resolves, checks, and connects to what was checked."""

    def __init__(self, *arguments: Any, policy: AddressPolicy, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._policy = policy

    def _new_conn(self) -> socket.socket:
        failure: Exception | None = None
        for family, kind, protocol, _, place in socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM):
            sock = socket.socket(family, kind, protocol)
            try:
                self._policy.check(str(place[0]))
                sock.settimeout(self.timeout)
                sock.connect(place)
            except (OSError, RefusedAddressError) as error:
                failure = error
                sock.close()
            else:
                return sock
        raise NewConnectionError(self, str(failure)) from failure


class GuardedHTTPConnection(_Guarded):
    """HTTP to addresses that ``policy`` allows."""


class GuardedHTTPSConnection(_Guarded, HTTPSConnection):
    """HTTPS to addresses that ``policy`` allows."""
