"""Secrets of receivers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mainstay.service.notifications.receivers.base import DeliveryError
from mainstay.service.notifications.secrets import SecretDirectory


def test_a_secret_is_read_anew_each_time(tmp_path: Path) -> None:
    secrets = SecretDirectory(tmp_path)
    for text in ("first", "https://hooks.example/a b", "pässword"):
        (tmp_path / "slack-url").write_text(f"\n  {text} \r\n")
        assert secrets.read("slack-url") == text


def test_a_secret_as_kubernetes_mounts_it(tmp_path: Path) -> None:
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..2026" / "token").write_text("abc")
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "token").symlink_to("..data/token")
    assert SecretDirectory(tmp_path).read("token") == "abc"


@pytest.mark.parametrize("name", ["..", "../a", "/etc/passwd", ".hidden", "", "a/b", "a\n", "a\0", "a" * 65])
def test_a_path_is_no_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(DeliveryError, match="name of a file") as caught:
        SecretDirectory(tmp_path / "secrets").read(name)
    assert not caught.value.again


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot read the secret key: No such file or directory"),
        (b"", "must be one line"),
        (b" \n", "must be one line"),
        (b"SECRET\r\nX-Header: 1", "must be one line"),
        (b"SECRET\0", "must be one line"),
        (b"SECRET\xff", "is not UTF-8 text"),
    ],
)
def test_a_secret_that_cannot_be_used(tmp_path: Path, content: bytes | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    with pytest.raises(DeliveryError, match=reason) as caught:
        SecretDirectory(tmp_path).read("key")
    assert caught.value.again, "the administrator may put it right"
    assert "SECRET" not in str(caught.value)


def test_a_directory_and_a_missing_directory(tmp_path: Path) -> None:
    (tmp_path / "key").mkdir()
    for place in (tmp_path, tmp_path / "missing"):
        with pytest.raises(DeliveryError, match=f"Put it into {place}{os.sep}key"):
            SecretDirectory(place).read("key")
