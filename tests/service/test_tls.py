"""TLS with certificates made by openssl: who is let in, and what happens when the files change."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainstay.probes import frame_route
from mainstay.probes.identity import enroll
from mainstay.probes.transport import RetryableError, TlsFiles, Transport
from mainstay.service.settings import Settings
from tests.probes.relay_process import RelayedNode, running_relay
from tests.service.certificates import Authority, replace_with
from tests.service.server_thread import served


@pytest.fixture
def settings(make_settings: Callable[..., Settings]) -> Callable[..., Settings]:
    return lambda **changes: make_settings(port=0, **changes)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def common_name(port: int, authority: Authority) -> str:
    context = ssl.create_default_context(cafile=str(authority.file))
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as sock,
    ):
        return str(dict(part[0] for part in sock.getpeercert()["subject"])["commonName"])  # type: ignore[index,misc]


@pytest.mark.slow
def test_a_changed_certificate_is_loaded_while_connections_go_on(
    settings: Any, authority: Authority, tmp_path: Path, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = authority.issue("old"), authority.issue("new")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    replace_with((certificate, key), old)
    context = ssl.create_default_context(cafile=str(authority.file))
    with (
        served(settings(tls_certificate=certificate, tls_key=key)) as port,
        httpx.Client(base_url=f"https://localhost:{port}", verify=context) as kept,
    ):
        assert common_name(port, authority) == "old"
        assert kept.get("/healthz").status_code == 200
        replace_with((certificate,), new[:1])  # without its key yet: no pair
        eventually(lambda: "the old one stays" in caplog.text)
        assert common_name(port, authority) == "old"
        replace_with((key,), new[1:])
        eventually(lambda: common_name(port, authority) == "new")
        assert kept.get("/healthz").status_code == 200


@pytest.fixture
def demanding(settings: Any, authority: Authority) -> Iterator[tuple[str, str, Authority]]:
    """A service that wants certificates of nodes: its URL and the administrator's token."""
    certificate, key = authority.issue("service")
    made = settings(tls_certificate=certificate, tls_key=key, tls_client_ca=authority.file)
    with served(made) as port:
        yield f"https://localhost:{port}", (made.data_dir / "admin-token").read_text().strip(), authority


def files(authority: Authority, name: str | None = None, **more: str) -> TlsFiles:
    return TlsFiles(authority.file, *(authority.issue(name, **more) if name else (None, None)))


def test_a_node_needs_a_certificate_of_its_own_name(demanding: Any, tmp_path: Path, report: Any) -> None:
    url, admin_token, authority = demanding
    admin = Transport(url, admin_token, tls=files(authority))
    join = admin.json("POST", "/auth/tokens", {"name": "j", "kind": "join"})["token"]
    with pytest.raises(RetryableError, match="shows none"):
        enroll(url, "n1", join, tmp_path, files(authority))
    with pytest.raises(RetryableError, match="one for localhost, n2"):
        enroll(url, "n1", join, tmp_path, files(authority, "n2"))
    secret = enroll(url, "n1", join, tmp_path, files(authority, "n1"))
    for tls, accepted in (
        (files(authority, "n1"), True),
        (files(authority, "x", common="n1"), True),
        (files(authority, "n2"), False),
        (files(authority), False),
    ):
        node = Transport(url, secret, tls=tls)
        if accepted:
            node.request("PUT", "/nodes/n1", report)
        else:
            with pytest.raises(RetryableError, match="client certificate") as caught:
                node.request("PUT", "/nodes/n1", report)
            assert (caught.value.status, caught.value.slug) == (403, "wrong-certificate")
        node.close()
    assert admin.json("GET", "/nodes/n1")["name"] == "n1", "people and jobs need none"
    admin.close()


def test_a_frame_of_a_remembered_token_needs_the_certificate_too(demanding: Any, tmp_path: Path, frames: Any) -> None:
    url, admin_token, authority = demanding
    admin = Transport(url, admin_token, tls=files(authority))
    join = admin.json("POST", "/auth/tokens", {"name": "j", "kind": "join"})["token"]
    secret = enroll(url, "n1", join, tmp_path, files(authority, "n1"))
    node = Transport(url, secret, tls=files(authority, "n1"))
    for number in (1, 2):
        node.send_frame(frames.body(number))
    for tls in (files(authority, "n2"), files(authority)):
        other = Transport(url, secret, tls=tls)
        with pytest.raises(RetryableError, match="client certificate") as caught:
            other.send_frame(frames.body(3))
        assert (caught.value.status, caught.value.slug) == (403, "wrong-certificate")
        other.close()
    node.send_frame(frames.body(3))
    node.close()
    admin.close()


def test_a_relay_needs_a_certificate_of_the_name_of_its_token(demanding: Any, tmp_path: Path) -> None:
    url, admin_token, authority = demanding
    admin = Transport(url, admin_token, tls=files(authority))
    secret = admin.json("POST", "/auth/tokens", {"name": "relay-1", "kind": "relay", "racks": ["r1"]})["token"]
    relay = Transport(url, secret, tls=files(authority, "relay-1"))
    relay.request("GET", "/nodes")
    other = Transport(url, secret, tls=files(authority, "relay-2"))
    with pytest.raises(RetryableError, match="client certificate"):
        other.request("GET", "/nodes")
    join = admin.json("POST", "/auth/tokens", {"name": "j", "kind": "join"})["token"]
    node = Transport(url, enroll(url, "n1", join, tmp_path, files(authority, "n1")), tls=files(authority, "relay-1"))
    assert node.json("GET", "/auth/me")["subject"] == "n1", "a relay may ask whose a node's token is"
    with pytest.raises(RetryableError, match="client certificate"):
        node.request("GET", "/nodes/n1")
    for transport in (node, admin, relay, other):
        transport.close()


def test_a_certificate_of_another_authority_gets_no_connection(demanding: Any, tmp_path: Path) -> None:
    url, admin_token, authority = demanding
    foreign = Authority(tmp_path / "foreign").issue("n1")
    transport = Transport(url, admin_token, tls=TlsFiles(authority.file, *foreign))
    with pytest.raises(RetryableError):
        transport.request("GET", "/nodes")
    transport.close()


def test_a_client_trusts_only_the_named_authority_and_reads_the_environment(
    demanding: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url, admin_token, authority = demanding
    with pytest.raises(RetryableError, match=r"(?i)certificate"):
        Transport(url, admin_token).request("GET", "/nodes")
    monkeypatch.setenv("MAINSTAY_CA_FILE", str(authority.file))
    Transport(url, admin_token).request("GET", "/nodes")
    monkeypatch.setenv("MAINSTAY_CA_FILE", str(tmp_path / "missing.pem"))
    with pytest.raises(ValueError, match=r"missing\.pem is not a file"):
        Transport(url)
    with pytest.raises(ValueError, match="both"):
        Transport(url, tls=TlsFiles(client_certificate=authority.file))


@pytest.mark.slow
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])  # an address is sent without a server name
def test_a_replaced_authority_of_clients_lets_others_in_and_the_first_no_more(
    settings: Any, authority: Authority, tmp_path: Path, eventually: Any, host: str
) -> None:
    second = Authority(tmp_path / "second")
    clients = tmp_path / "clients.pem"
    replace_with((clients,), (authority.file,))
    certificate, key = authority.issue("service")
    made = settings(tls_certificate=certificate, tls_key=key, tls_client_ca=clients)
    with served(made) as port:
        token = (made.data_dir / "admin-token").read_text().strip()

        def is_let_in(signer: Authority) -> bool:
            transport = Transport(f"https://{host}:{port}", token, tls=TlsFiles(authority.file, *signer.issue("n1")))
            try:
                transport.request("GET", "/auth/me")
            except RetryableError:
                return False
            finally:
                transport.close()
            return True

        assert (is_let_in(authority), is_let_in(second)) == (True, False)
        replace_with((clients,), (second.file,))
        eventually(lambda: is_let_in(second))
        assert not is_let_in(authority)
        clients.unlink()
        replace_with((clients,), (authority.file,))
        eventually(lambda: is_let_in(authority))


def _issue_all(authority: Authority, directory: Path) -> None:
    """Put what the service, the relay, and the node need where they read it."""
    replace_with((directory / "ca.pem",), (authority.file,))
    for name in ("service", "relay-host", "relay-1", "n1"):
        replace_with((directory / f"{name}.pem", directory / f"{name}.key"), authority.issue(name))


@pytest.mark.processes
@pytest.mark.slow
def test_relay_and_node_follow_all_certificates_and_authorities_without_a_restart(
    settings: Any, tmp_path: Path, eventually: Any, monkeypatch: pytest.MonkeyPatch, report: Any
) -> None:
    """Every file is replaced by one of an authority that had no part before. Only the service starts again."""
    monkeypatch.setattr(frame_route, "PROBE_SECONDS", 1.0)
    monkeypatch.setenv("MAINSTAY_CA_FILE", str(tmp_path / "ca.pem"))  # of the relay and of the node
    _issue_all(Authority(tmp_path / "first"), tmp_path)
    certificate, key = pair(tmp_path, "service")
    made = settings(tls_certificate=certificate, tls_key=key, tls_client_ca=tmp_path / "ca.pem")
    tls = TlsFiles(tmp_path / "ca.pem", *pair(tmp_path, "n1"))
    with ExitStack() as stack:
        with served(made) as port:
            url = f"https://localhost:{port}"
            admin = Transport(url, (made.data_dir / "admin-token").read_text().strip())
            join = admin.json("POST", "/auth/tokens", {"name": "j", "kind": "join"})["token"]
            of_relay = {"name": "relay-1", "kind": "relay", "racks": ["*"]}
            relay_token = admin.json("POST", "/auth/tokens", of_relay)["token"]
            direct = Transport(url, enroll(url, "n1", join, tmp_path, tls), tls=tls)
            direct.request("PUT", "/nodes/n1", report)
            options = _relay_options(tmp_path)
            relay = stack.enter_context(running_relay(url, tmp_path / "relay", relay_token, *options))
            node = stack.enter_context(closing(RelayedNode("n1", direct.token, tmp_path, relay.url, url)))
            node.sender.start()
            node.put()
            eventually(lambda: relay.metric("bundles_sent_total") == 1)
        _issue_all(Authority(tmp_path / "second"), tmp_path)
        for transport in (node.relay, direct):
            transport.close()  # an open connection keeps what it was opened with
        with served(made.model_copy(update={"port": port})):
            eventually(lambda: relay.get("/healthz"))
            node.put()
            eventually(lambda: relay.metric("bundles_sent_total") == 2)
            direct.request("PUT", "/nodes/n1", report)
            assert node.spool.wait_empty(60)
    for transport in (direct, admin):
        transport.close()


def pair(directory: Path, name: str) -> tuple[Path, Path]:
    return directory / f"{name}.pem", directory / f"{name}.key"


def _issue_all(authority: Authority, directory: Path) -> None:
    """Put what the service, the relay, and the node need where they read it."""
    replace_with((directory / "ca.pem",), (authority.file,))
    for name in ("service", "relay-host", "relay-1", "n1"):
        replace_with(pair(directory, name), authority.issue(name))


def _relay_options(directory: Path) -> list[str]:
    client, server = pair(directory, "relay-1"), pair(directory, "relay-host")
    options = ("--client-certificate", client[0], "--client-key", client[1])
    return [str(part) for part in (*options, "--tls-certificate", server[0], "--tls-key", server[1])]
