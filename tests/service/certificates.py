"""Certificates for tests, made by the openssl program: an authority, and what it signs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Authority:
    """A certificate authority in a directory."""

    directory: Path

    @property
    def file(self) -> Path:
        return self.directory / "ca.pem"

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        options = ["-subj", "/CN=test authority", "-days", "2", "-addext", "keyUsage=critical,keyCertSign"]
        _openssl("req", "-x509", *_NEW_KEY, *options, "-keyout", str(self._key), "-out", str(self.file))

    @property
    def _key(self) -> Path:
        return self.directory / "ca.key"

    def issue(self, name: str, *, common: str | None = None) -> tuple[Path, Path]:
        """Certificate and key for the DNS name ``name`` (loopback is in it too)."""
        certificate, key = (self.directory / f"{name}.{suffix}" for suffix in ("pem", "key"))
        names = f"subjectAltName=DNS:{name},DNS:localhost,IP:127.0.0.1"
        options = ["-subj", f"/CN={common or name}", "-days", "2", "-addext", names]
        signer = ["-CA", str(self.file), "-CAkey", str(self._key)]
        _openssl("req", "-x509", *_NEW_KEY, *options, *signer, "-keyout", str(key), "-out", str(certificate))
        return certificate, key


def replace_with(targets: Sequence[Path], sources: Sequence[Path]) -> None:
    """Put a copy of each source in the place of its target, as a tool that renews certificates does."""
    for target, source in zip(targets, sources, strict=True):
        scratch = target.with_suffix(".new")
        shutil.copyfile(source, scratch)
        scratch.replace(target)


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
