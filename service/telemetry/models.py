"""Catalogs that nodes announced: the names of a frame's rows, kept while blocks refer to them."""

from __future__ import annotations

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from mainstay.service.common.db import Base, UnixTime


class CatalogRow(Base):
    __tablename__ = "catalogs"

    digest: Mapped[str] = mapped_column(String(16), primary_key=True)
    narrow: Mapped[list[str]]
    wide: Mapped[list[str]]
    created_at: Mapped[float] = mapped_column(UnixTime)
