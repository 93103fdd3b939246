"""Catalogues that nodes announced: the names behind a frame's tensor, kept for as long as blocks refer to them."""

from __future__ import annotations

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from service.kit.db import Base, UnixTime


class CatalogueRow(Base):
    __tablename__ = "catalogues"

    digest: Mapped[str] = mapped_column(String(16), primary_key=True)
    narrow: Mapped[list[str]]
    wide: Mapped[list[str]]
    created_at: Mapped[float] = mapped_column(UnixTime)
