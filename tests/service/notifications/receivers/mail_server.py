"""A real SMTP server (chasquid) that delivers to files: with STARTTLS, implicit TLS, and accounts."""

from __future__ import annotations

import email
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import Any

from tests import machine
from tests.service.certificates import Authority
from tests.service.conftest import wait_until

PASSWORD = "correct-horse-battery"
HOOK = """#!/bin/sh
case "$RCPT_TO" in
  *busy@*) echo "Too many mails, try again later"; exit 1;;
  *strict@*) echo "This looks like spam"; exit 20;;
esac
"""
ALIASES = "busy: ops\nstrict: ops\noncall: ops\n"


@dataclass(frozen=True)
class MailServer:
    """A server for the domain mail.test, whose one account is ops."""

    directory: Path
    authority: Authority
    plain: int
    """Ports."""
    starttls: int
    implicit: int

    def find(self, message_id: str, count: int = 1) -> list[EmailMessage]:
        """The delivered mails with this ID, once there are ``count``."""

        def found() -> list[EmailMessage] | None:
            mails = [email.message_from_bytes(path.read_bytes(), policy=default) for path in self._mails()]
            mine = [mail for mail in mails if mail["Message-ID"] == message_id]
            return mine if len(mine) >= count else None

        mails: list[EmailMessage] = wait_until(found)
        return mails

    def _mails(self) -> Iterator[Path]:
        return (self.directory / "mails").iterdir()


def _configure(directory: Path, authority: Authority, ports: list[int]) -> None:
    config = directory / "config"
    for name in ("config/certs/mail.test", "config/domains/mail.test", "config/hooks", "data", "mails", "new"):
        (directory / name).mkdir(parents=True)
    certificate, key = authority.issue("mail.test")
    certificate.rename(config / "certs" / "mail.test" / "fullchain.pem")
    key.rename(config / "certs" / "mail.test" / "privkey.pem")
    (config / "domains" / "mail.test" / "aliases").write_text(ALIASES)
    (config / "hooks" / "post-data").write_text(HOOK)
    (config / "hooks" / "post-data").chmod(0o755)
    store = f"cat > {directory}/new/$$ && mv {directory}/new/$$ {directory}/mails/"
    arguments = "".join(f'mail_delivery_agent_args: "{argument}"\n' for argument in ("-c", store))
    (config / "chasquid.conf").write_text(
        f'hostname: "mail.test"\nsmtp_address: "127.0.0.1:{ports[0]}"\nsubmission_address: "127.0.0.1:{ports[1]}"\n'
        f'submission_over_tls_address: "127.0.0.1:{ports[2]}"\ndata_dir: "{directory}/data"\n'
        f'mail_log_path: "<stderr>"\nmail_delivery_agent_bin: "/bin/sh"\n{arguments}'
    )
    account = ["chasquid-util", f"--configdir={config}", "user-add", "ops@mail.test", f"--password={PASSWORD}"]
    subprocess.run(account, check=True, capture_output=True, timeout=60)


@contextmanager
def mail_server(directory: Path, free_port: Callable[[], int]) -> Iterator[MailServer]:
    """Run one in a directory."""
    binary, authority, ports = machine.program("chasquid"), Authority(directory / "ca"), [free_port() for _ in range(3)]
    _configure(directory, authority, ports)
    with (directory / "log").open("wb") as log:
        output: Any = {"stdout": log, "stderr": log}
        child = subprocess.Popen([binary, f"--config_dir={directory / 'config'}"], **output)
    try:
        wait_until(lambda: _listens(child, directory, ports[2]))
        yield MailServer(directory, authority, *ports)
    finally:
        child.terminate()
        child.wait(30)


def _listens(child: subprocess.Popen[bytes], directory: Path, port: int) -> bool:
    log = (directory / "log").read_text(errors="replace")
    assert child.poll() is None, log[-2000:]
    return f":{port}" in log
