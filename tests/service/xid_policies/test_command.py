"""``mainstay policy`` against a running service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mainstay.detectors.policy import cli


def test_upload_and_test_reach_the_service(service: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site.toml"
    site.write_text('[xid.79]\nrecommended_action = "inspect_node"\n')
    secret = tmp_path / "token"
    secret.write_text(service.admin_token + "\n")
    assert cli.upload(site, reason="try it", service=service.url, token_file=secret) == 0
    assert capsys.readouterr().out.startswith("version 1 is shadow (digest ")
    assert service.client().get("/v1/policies/xid").json()["shadow"]["reason"] == "try it"
    assert cli.evaluate_overrides(site, service=service.url, token_file=secret, since="2h", as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["events"] == 0
    assert cli.upload(site, reason="r", service=service.url, token="absent") == 5
    assert "401" in capsys.readouterr().err
