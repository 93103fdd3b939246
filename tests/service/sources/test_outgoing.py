"""A target leads nowhere but to an exporter, also when its name resolves to another address later."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mainstay.service.common.outgoing import AddressPolicy, RefusedAddressError
from mainstay.service.common.outgoing_request import check_url
from mainstay.service.sources.dcgm.fetch import FetchError, fetch
from tests.service.sources.exporter import Exporter, old_text

ALLOWED = ["127.0.0.1", "::1", "10.1.2.3", "172.16.0.9", "192.168.7.7", "192.0.2.4", "2001:db8::4"]
NEVER = [
    "169.254.169.254", "169.254.1.1", "fe80::1", "fe80::1%eth0", "fd00:ec2::254", "fd20:ce::254", "100.100.100.200",
    "168.63.129.16", "192.0.0.192", "0.0.0.0", "0.1.2.3", "::", "224.0.0.1", "ff02::1", "255.255.255.255", "240.0.0.1",
    "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe", "2002:a9fe:a9fe::1", "::ffff:0.0.0.0",
]  # fmt: skip
CLOSED = [
    ("fc00::1", "fc00::/7"), ("fd12:3456::1", "fd12:3456::/32"), ("fec0::1", "fec0::/10"),
    ("100.64.0.1", "100.64.0.0/10"), ("100.127.255.254", "100.64.0.0/10"), ("::ffff:10.0.0.1", "::ffff:10.0.0.0/104"),
    ("64:ff9b::a00:1", "64:ff9b::/96"), ("2002:a00:1::1", "2002::/16"),
]  # fmt: skip


@pytest.mark.parametrize("address", ALLOWED)
def test_where_exporters_run_is_allowed(address: str) -> None:
    AddressPolicy().check(address)


@pytest.mark.parametrize("address", NEVER)
def test_no_setting_opens_what_no_exporter_has(address: str) -> None:
    for networks in ((), ("0.0.0.0/0", "::/0")):
        with pytest.raises(RefusedAddressError):
            AddressPolicy.from_texts(networks).check(address)


@pytest.mark.parametrize(("address", "network"), CLOSED)
def test_a_closed_network_is_opened_by_name(address: str, network: str) -> None:
    for networks in ((), ("192.0.2.0/24", "2001:db8::/32")):
        with pytest.raises(RefusedAddressError, match=r"sources\.allowed_networks"):
            AddressPolicy.from_texts(networks).check(address)
    AddressPolicy.from_texts((network,)).check(address)


@pytest.mark.parametrize("address", [a for a in NEVER if "%" not in a])
def test_an_address_is_refused_when_the_target_is_made(address: str) -> None:
    with pytest.raises(ValueError, match=r"metadata|no address of a server"):
        check_url(f"http://{f'[{address}]' if ':' in address else address}/metrics")


def test_a_closed_network_is_refused_when_the_target_is_made(start) -> None:
    service = start(sources={"allowed_networks": ["fd12::/16"]})
    url = "http://[{}]:9400/metrics"
    refused = service.client().post("/v1/ingest/dcgm-targets", json={"url": url.format("fd13::1")})
    assert refused.status_code == 422
    assert "sources.allowed_networks" in refused.json()["detail"]
    made = service.client().post("/v1/ingest/dcgm-targets", json={"url": url.format("fd12::1"), "enabled": False})
    assert made.status_code == 201


def test_a_name_that_changes_its_address_after_the_check_leads_nowhere(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: the first answer is harmless, each later one is not."""
    real, answers = socket.getaddrinfo, iter(["127.0.0.1"])

    def rebinding(host: Any, *arguments: Any, **options: Any) -> Any:
        return real(next(answers, "169.254.169.254") if host == "rebind.test" else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    url = exporter.url.replace("127.0.0.1", "rebind.test")
    assert fetch(url, seconds=5, max_bytes=1_000_000) == old_text()
    with pytest.raises(FetchError, match="metadata service"):
        fetch(url, seconds=5, max_bytes=1_000_000)
    assert exporter.asked == 1


HOSTS = """127.0.0.1 good.test
169.254.169.254 metadata.test
::ffff:127.0.0.1 mapped.test
100.64.0.1 shared.test
fd00::1 unique.test
"""
ASK = """
import sys
from mainstay.service.sources.dcgm.fetch import FetchError, fetch
for name in sys.argv[2:]:
    try:
        text = fetch(f"http://{name}:{sys.argv[1]}/metrics", seconds=5, max_bytes=1_000_000)
        print(name, "answered", len(text) > 0)
    except FetchError as error:
        print(name, error)
"""


def test_names_of_the_systems_own_resolver(exporter: Exporter, tmp_path: Path) -> None:
    """In a mount namespace with a hosts file of its own: glibc resolves the names, nothing is replaced in Python."""
    (tmp_path / "hosts").write_text(HOSTS)
    namespace = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    mount = ["sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(tmp_path / "hosts")]
    port = exporter.url.split(":")[2].split("/")[0]
    names = ["good.test", "metadata.test", "mapped.test", "shared.test", "unique.test"]
    ask = [sys.executable, "-c", ASK, port, *names]
    done = subprocess.run([*namespace, *mount, *ask], capture_output=True, text=True, timeout=100, check=True)
    told = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert told["good.test"] == "answered True"
    assert "metadata service" in told["metadata.test"]
    for name, what in (("mapped.test", "translated"), ("shared.test", "shared"), ("unique.test", "unique-local")):
        assert what in told[name], told
        assert "sources.allowed_networks" in told[name]
    assert exporter.asked == 1
