"""Builds the data path of one process from its settings."""

from __future__ import annotations

from service.fleet.seen import Seen
from service.kit.clock import Clock
from service.kit.db import Database
from service.settings import Settings
from service.telemetry.blocks import BlockStore
from service.telemetry.blocks_postgres import PostgresBlockStore
from service.telemetry.blocks_sqlite import SqliteBlockStore
from service.telemetry.catalogues import CatalogueIndex, Told
from service.telemetry.check import Samples
from service.telemetry.ingest import Ingest
from service.telemetry.pairs import PairStore
from service.telemetry.progress import ProgressStore
from service.telemetry.ring import Ring
from service.telemetry.steps import StepStore
from service.telemetry.subjects import Subjects, WorldSize
from service.telemetry.writer import GroupWriter


def open_blocks(settings: Settings, database: Database) -> BlockStore:
    """The block store that the settings name.

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
    return PostgresBlockStore(database.engine)


def build_ingest(settings: Settings, database: Database, clock: Clock, world_size: WorldSize) -> Ingest:
    """The data path, not started yet."""
    telemetry = settings.telemetry
    ring = Ring(telemetry.ring_seconds)
    steps = StepStore(telemetry.step_ring_steps, telemetry.step_ring_bytes)
    progress = ProgressStore(telemetry.progress_ring_seconds, telemetry.progress_ring_bytes)
    pairs = PairStore(budget=telemetry.pair_ring_bytes)
    places = {
        Told.DEVICES: ring.write,
        Told.STEPS: steps.write,
        Told.PROGRESS: progress.write,
        Told.PAIRS: pairs.write,
    }
    store = open_blocks(settings, database)

    def keep(samples: Samples) -> None:
        places[samples.compiled.told](samples)

    writer = GroupWriter(
        store=store, keep=keep, interval=telemetry.commit_interval, max_pending=telemetry.max_pending_frames
    )
    return Ingest(
        settings=telemetry,
        clock=clock,
        catalogues=CatalogueIndex(database),
        subjects=Subjects(database, world_size),
        ring=ring,
        steps=steps,
        progress=progress,
        pairs=pairs,
        seen=Seen(),
        store=store,
        writer=writer,
        keep=keep,
    )
