"""Which machines' results may be compared: the same hardware under the same driver and firmware.

A node's own cohort names its hardware. Validation adds what its GPUs say of driver and video BIOS, so a criterion
learned before an update is not held against the machines after it: they are UNKNOWN until criteria are learned for
them, and ``mainstay criteria drift`` tells what the update did. Criteria of the hardware alone, stated or learned where
no driver is known, hold for every driver that has none of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import InstrumentedAttribute

from mainstay.service.common.db import AnySession
from mainstay.service.fleet.models import DeviceRow, NodeRow

FACTS: Final = ("driver", "vbios")
_SEPARATOR: Final = "; "
_LONGEST: Final = 200


def with_software(cohort: str, facts: Iterable[Mapping[str, str]]) -> str:
    """``8x-H100; driver 550.90.07; vbios 96.00.99``; the cohort alone where the GPUs say neither.

    Args:
        cohort: of the hardware.
        facts: of each GPU; where these differ, all values are named.
    """
    told = list(facts)
    versions = {name: sorted({of[name] for of in told if of.get(name)}) for name in FACTS}
    parts = [f"{name} {'+'.join(values)}" for name, values in versions.items() if values]
    return _SEPARATOR.join((cohort, *parts))[:_LONGEST] if cohort else ""


def cohort_of(session: AnySession, node: NodeRow) -> str:
    """The cohort that a node's results belong to now."""
    statement = select(DeviceRow.facts).where(
        DeviceRow.node == node.name, DeviceRow.kind == "gpu", DeviceRow.present.is_(True)
    )
    return with_software(node.cohort, session.scalars(statement))


def hardware(cohort: str) -> str:
    """The part that names the hardware."""
    return cohort.partition(_SEPARATOR)[0]


def within(column: InstrumentedAttribute[str], cohort: str) -> ColumnElement[bool]:
    """Rows of a cohort; of one that names the hardware only, those under every driver."""
    return (column == cohort) | column.startswith(cohort + _SEPARATOR, autoescape=True)
