"""The weekly report arrives by a real SMTP server, through the planner and the outbox."""

from __future__ import annotations

import pytest

from mainstay.service.notifications.delivery import Sender
from mainstay.service.notifications.models import DeliveryState
from tests.service.conftest import wait_until
from tests.service.notifications.conftest import PlannerBench
from tests.service.notifications.receivers.mail_server import MailServer
from tests.service.notifications.test_report import MONDAY, move_to, put_history

pytestmark = pytest.mark.slow


def text(mail: MailServer, name: str) -> str:
    return f"""
[receivers.{name}]
kind = "email"
host = "127.0.0.1"
port = {mail.plain}
tls = "none"
sender = "mainstay@mail.test"
recipients = ["ops@mail.test"]
[report]
receivers = ["{name}"]
timezone = "Europe/Berlin"
"""


def test_the_report_arrives_as_text_and_tables(bench: PlannerBench, mail: MailServer, database_url: str) -> None:
    name = database_url.partition(":")[0].partition("+")[0]  # the server is the same for both databases
    bench.configure(text(mail, name))
    put_history(bench)
    assert move_to(bench, MONDAY) == [(name, "report")]
    sender = Sender(bench.services)
    sender.run_once()
    wait_until(lambda: all(future.done() for future in sender.running.values()))
    sender.close()
    (row,) = bench.rows()
    assert (row.state, row.error) == (DeliveryState.DELIVERED.value, "")
    (found,) = mail.find(f"<{row.id}@mail.test>")
    assert found["Subject"] == "Mainstay reliability report, 2027-01-11 08:00 to 2027-01-18 08:00 CET"
    plain, html = (found.get_body([kind]) for kind in ("plain", "html"))
    assert plain is not None and html is not None  # noqa: PT018
    assert "Effective training time" in plain.get_content()
    assert "https://mainstay.example/reliability" in plain.get_content()
    content = html.get_content()
    assert content.count("<table") == 6
    assert '<a href="https://mainstay.example/reliability">Open in Mainstay</a>' in content
    assert "<img" not in content
    assert "&lt;b&gt;demo&lt;/b&gt;" in content
