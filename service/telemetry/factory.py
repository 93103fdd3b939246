"""Builds the data path of one process from its settings."""

from __future__ import annotations

from collections.abc import Callable

from mainstay.service.common.clock import Clock
from mainstay.service.common.db import Database
from mainstay.service.fleet.last_seen import LastSeenCache
from mainstay.service.settings import Settings
from mainstay.service.telemetry.blocks import BlockStore
from mainstay.service.telemetry.blocks_postgres import PostgresBlockStore
from mainstay.service.telemetry.blocks_sqlite import SqliteBlockStore
from mainstay.service.telemetry.catalogs import CatalogIndex, CatalogScope
from mainstay.service.telemetry.check import CheckedSamples
from mainstay.service.telemetry.frame_batch import FrameBatch
from mainstay.service.telemetry.ingest import Ingest
from mainstay.service.telemetry.pairs import PairStore
from mainstay.service.telemetry.progress import ProgressStore
from mainstay.service.telemetry.ring import TelemetryRing
from mainstay.service.telemetry.steps import StepStore
from mainstay.service.telemetry.stored_frames import StoredFrames
from mainstay.service.telemetry.subjects import Subjects, WorldSize
from mainstay.service.telemetry.writer import GroupCommitWriter


def open_blocks(settings: Settings, database: Database, writer: int | None = None) -> BlockStore:
    """The block store that the settings name; ``writer`` is the number of this process.

    Raises:
        ValueError: PostgreSQL blocks are asked for without a PostgreSQL database.
    """
    wanted = settings.blocks
    if wanted == "auto":
        wanted = "sqlite" if database.is_sqlite else "postgresql"
    if wanted == "sqlite":
        return SqliteBlockStore(settings.data_dir / "blocks")
    if database.is_sqlite:
        raise ValueError("blocks=postgresql needs a postgresql database_url")
    return PostgresBlockStore(database.engine, writer)


def build_ingest(
    settings: Settings, database: Database, clock: Clock, world_size: WorldSize, process: int | None = None
) -> Ingest:
    """The data path, not started yet; ``process`` is its number."""
    telemetry = settings.telemetry
    ring = TelemetryRing(telemetry.ring_seconds, telemetry.ring_bytes)
    steps = StepStore(telemetry.step_ring_steps, telemetry.step_ring_bytes)
    progress = ProgressStore(telemetry.progress_ring_seconds, telemetry.progress_ring_bytes)
    pairs = PairStore(budget=telemetry.pair_ring_bytes)
    places: dict[CatalogScope, Callable[[CheckedSamples], None]] = {
        CatalogScope.STEPS: steps.write,
        CatalogScope.PROGRESS: progress.write,
        CatalogScope.PAIRS: pairs.write,
    }
    store = open_blocks(settings, database, process)

    def keep(samples: CheckedSamples | FrameBatch) -> None:
        if settings.is_gateway:
            return  # it answers no question about telemetry
        if isinstance(samples, FrameBatch):
            ring.write(samples)
        else:
            places[samples.compiled.scope](samples)

    writer = GroupCommitWriter(
        store=store, keep=keep, interval=telemetry.commit_interval_seconds, max_pending=telemetry.max_pending_frames
    )
    catalogs = CatalogIndex(database)
    return Ingest(
        settings=telemetry,
        clock=clock,
        catalogs=catalogs,
        subjects=Subjects(database, world_size),
        ring=ring,
        steps=steps,
        progress=progress,
        pairs=pairs,
        seen=LastSeenCache(settings.fleet.heartbeat_timeout_seconds / 4),
        store=store,
        stored=StoredFrames(catalogs),
        writer=writer,
        keep=keep,
    )
