"""Catalogs beside a spool: what is sent may be delivered by a later process, to a service that lost the catalog."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from mainstay.probes.decoding import build_decoders, read_if_whole
from mainstay.probes.durable_files import write_durably
from mainstay.probes.signals import Catalog
from mainstay.probes.transport import RejectedError, RetryableError

T = TypeVar("T")


build_decoders(Catalog)


class CatalogStore:
    """Catalogs by digest, each a file in ``directory``; those seen before are answered from memory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, Catalog] = {}

    def store(self, catalog: Catalog) -> None:
        """Keep a catalog on disk; cheap when it is known."""
        if catalog.digest not in self._known:
            write_durably(self._path(catalog.digest), msgspec.json.encode(catalog), mode=0o600)
            self._known[catalog.digest] = catalog

    def load(self, digest: str) -> Catalog | None:
        """The catalog with this digest (a legal id), None when it was never stored or is unreadable."""
        if digest not in self._known:
            found = read_if_whole(self._path(digest), Catalog)
            if found is None:
                return None
            self._known[digest] = found
        return self._known[digest]

    def _path(self, digest: str) -> Path:
        return self._directory / f"catalog-{digest}.json"

    def send_announced(
        self, send: Callable[[], T], announce: Callable[[Catalog], None], digest: Callable[[], str]
    ) -> T:
        """Call ``send``; if the receiver does not know the catalog, ``announce`` it and send again.

        Raises:
            RejectedError: the receiver rejects what is sent, or the catalog is known neither there nor here.
            RetryableError: it may be accepted another time.
        """
        try:
            return send()
        except RejectedError as error:
            if error.slug != "unknown-catalog":
                raise
        wanted = digest()
        catalog = self.load(wanted)
        if catalog is None:
            raise RejectedError(f"catalog {wanted} is known neither here nor at the service")
        announce(catalog)
        try:
            return send()
        except RejectedError as error:
            if error.slug == "unknown-catalog":
                raise RetryableError(f"the service forgot catalog {wanted} at once") from error
            raise
