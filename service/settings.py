"""Settings: read once in the composition root, passed down, never imported as a global.

Every field is an environment variable: prefix ``MAINSTAY_``, nested by two underscores, e.g.
``MAINSTAY_TELEMETRY__RING_SECONDS=900``.
"""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class TelemetrySettings(BaseModel):
    """The data path: frame route, ring, block store."""

    ring_seconds: int = Field(default=900, ge=60, le=86_400, description="Seconds of telemetry kept in memory.")
    commit_interval: float = Field(
        default=0.1,
        gt=0,
        le=5,
        description="Longest wait for a group commit, seconds; the acknowledgement waits for it.",
    )
    max_frame_bytes: int = Field(default=8 * 1024 * 1024, ge=1024, description="Largest frame accepted, bytes.")
    max_pending_frames: int = Field(
        default=20_000, ge=1, description="Frames that may wait for a commit before new ones are answered 503."
    )
    retention_hours: int = Field(default=48, ge=1, description="Hours of blocks kept at full rate.")
    step_refill_hours: float = Field(
        default=6.0, ge=0, description="Hours of step records read back into memory at start."
    )
    step_ring_steps: int = Field(default=2048, ge=64, description="Steps of each job kept in memory.")
    step_ring_bytes: int = Field(
        default=2**30, ge=2**20, description="Memory for the steps of all jobs; a large job keeps fewer of them."
    )
    progress_ring_seconds: int = Field(default=600, ge=60, le=86_400, description="Seconds of progress kept of a job.")
    progress_ring_bytes: int = Field(
        default=2**29, ge=2**20, description="Memory for the progress of all jobs; a large job keeps fewer seconds."
    )
    pair_ring_bytes: int = Field(
        default=2**29, ge=2**20, description="Memory for the transfers between ranks of all jobs."
    )
    max_future_seconds: float = Field(
        default=300.0, gt=0, description="How far ahead of this clock a frame's time may be."
    )


class AuthSettings(BaseModel):
    """Tokens and sessions."""

    session_hours: float = Field(default=24 * 7, gt=0, description="Life of a browser session, hours.")
    join_token_hours: float = Field(default=24, gt=0, description="Default life of a join token, hours.")
    cache_seconds: float = Field(
        default=60.0, ge=0, description="How long a checked token is trusted before the database is asked again."
    )
    revocation_seconds: float = Field(
        default=1.0, gt=0, description="How often a process looks for revocations made by another one."
    )


class StreamSettings(BaseModel):
    """Live updates."""

    poll_interval: float = Field(default=0.15, gt=0, description="How often new changes are looked for, seconds.")
    keep_alive: float = Field(default=15.0, gt=0, description="Comment sent on a silent stream, seconds.")
    max_life: float = Field(default=600.0, gt=0, description="A stream ends after this and the client reconnects.")
    keep_changes: int = Field(default=50_000, ge=1000, description="Changes kept for resuming.")
    max_watchers: int = Field(default=200, ge=1, description="Streams open at the same time.")


class FleetSettings(BaseModel):
    """Nodes."""

    silent_after: float = Field(default=10.0, gt=0, description="Age of a node's last word that makes it unknown, s.")


class IncidentSettings(BaseModel):
    """The judge and the life of an incident."""

    judge_interval: float = Field(default=1.0, gt=0, le=60, description="Seconds between two looks at measurements.")
    plan_seconds: float = Field(
        default=15.0, gt=0, description="A stopped job without a plan for so long needs a human, s."
    )
    attention_seconds: float = Field(
        default=120.0, gt=0, description="Any other open incident that does not clear by itself needs a human, s."
    )
    act_seconds: float = Field(default=300.0, gt=0, description="A recovery that takes longer needs a human, s.")
    verify_seconds: float = Field(default=60.0, gt=0, description="A recovery not verified by then needs a human, s.")
    clear_seconds: float = Field(
        default=30.0, gt=0, description="Findings that stay away for so long verify an incident without a recovery, s."
    )
    quiet_seconds: float = Field(default=60.0, gt=0, description="A verified incident closes after this, s.")
    replay_seconds: float = Field(
        default=3600.0, ge=0, description="Events at least this far back are shown to the detectors after a restart, s."
    )


class RemediationSettings(BaseModel):
    """What the machine may do about a node that evidence is held against. Nothing moves unless a site says so."""

    mode: Literal["dry_run", "automatic"] = Field(
        default="dry_run", description="dry_run: every proposal waits for a person. automatic: allowed ones are taken."
    )
    migrate: Literal["off", "ask", "automatic"] = Field(
        default="ask",
        description="Whether jobs are advised to move ranks off a living node that evidence is held against: never, "
        "once a person accepts it, or at once where every rule allows it.",
    )
    interval: float = Field(default=1.0, gt=0, le=60, description="Seconds between two looks at findings and drains.")
    min_confidence: float = Field(
        default=0.9, ge=0.5, le=1, description="Findings less certain than this propose nothing."
    )
    boot_grace_seconds: float = Field(
        default=300.0,
        ge=0,
        description="A node that booted this recently is held: links and managers still come up, s.",
    )
    share_limit: float = Field(
        default=0.05, ge=0, le=1, description="Largest share of the fleet that we drain in one window."
    )
    minimum: int = Field(default=1, ge=0, description="Nodes that we may drain in a window however small the fleet.")
    rack_limit: int = Field(default=2, ge=0, description="Nodes of one rack that we drain in one window.")
    window_seconds: float = Field(default=3600.0, gt=0, description="Window of the circuit breaker, s.")
    drain_seconds: float | None = Field(
        default=1800.0, gt=0, description="After this a drain of ours ends in quarantine even if work is left, s."
    )
    comeback_days: float = Field(
        default=7.0, gt=0, description="What comes back within so many days of a remedy gets the next one."
    )
    suite: Literal["quick", "standard", "deep"] = Field(
        default="standard", description="Suite that lets a node back unless a stronger one is needed."
    )


class RetentionSettings(BaseModel):
    """How long what is over is kept; what is active stays for ever."""

    days: float = Field(default=90.0, ge=1, description="Days for which closed incidents, events and moves are kept.")
    interval: float = Field(default=300.0, gt=0, description="Seconds between two rounds of forgetting.")
    batch: int = Field(default=500, ge=1, le=5000, description="Rows of each kind that one round forgets at most.")


class SourceSettings(BaseModel):
    """Other monitors that are scraped."""

    scrape_seconds: float = Field(default=5.0, gt=0, le=60, description="Longest time for one scrape, s.")
    max_scrape_bytes: int = Field(default=16 * 1024 * 1024, ge=1024, description="Largest answer of an exporter.")
    scrape_threads: int = Field(default=8, ge=1, le=64, description="Scrapes at the same time.")
    ca_file: Path | None = Field(default=None, description="PEM of authorities to trust for https targets.")


class ExpositionSettings(BaseModel):
    """What /metrics says of single devices."""

    gpus: bool = Field(default=True, description="A series for every signal of every GPU.")
    hosts: bool = Field(default=True, description="A series for every signal of every host.")
    ports: bool = Field(default=True, description="A series for every signal of every network port.")
    nodes: bool = Field(default=True, description="The state of every node.")
    stale_seconds: int = Field(
        default=45, ge=5, le=600, description="What was not read for so long is left out, s; above any scrape interval."
    )


class ValidationSettings(BaseModel):
    """Validations and sweeps."""

    deadline_factor: float = Field(
        default=5.0, ge=1, description="A validation expires after this many times its suite's expected seconds."
    )
    deadline_seconds: float = Field(default=300.0, gt=0, description="And never sooner than this, s.")
    poll_interval: float = Field(default=0.5, gt=0, description="How often waiting nodes' orders are looked for, s.")
    keep_runs: int = Field(default=20, ge=1, description="Runs of a sweep that its answer lists.")


class AdmissionSettings(BaseModel):
    """The gate for schedulers."""

    suite: str = Field(default="quick", description="The weakest suite whose pass counts in full.")
    max_age_hours: float = Field(default=168.0, gt=0, description="A check older than this counts less, h.")


class CelerySettings(BaseModel):
    """Tasks and sweeps."""

    broker_url: str = Field(default="memory://", description="memory:// inside one process, or redis://… .")
    embedded: bool = Field(default=True, description="Run worker and beat inside this process with memory://.")
    tick_seconds: float = Field(
        default=5.0, gt=0, description="Beat looks for due sweeps and expired validations this often, s."
    )
    concurrency: int = Field(default=4, ge=1, le=256, description="Tasks that run at the same time in one worker.")


class Settings(BaseSettings):
    """Everything that may be configured."""

    model_config = SettingsConfigDict(env_prefix="MAINSTAY_", env_nested_delimiter="__", extra="ignore")

    data_dir: Path = Field(
        default_factory=lambda: Path.home() / ".mainstay", description="Database, blocks and the admin token live here."
    )
    host: str = Field(default="127.0.0.1", description="Address to listen on; loopback unless you say otherwise.")
    port: int = Field(default=8080, ge=0, le=65_535, description="Port to listen on; 0 takes a free one.")
    insecure_listen: bool = Field(
        default=False, description="Allow a non-loopback address without TLS: tokens then travel in clear text."
    )
    tls_certificate: Path | None = Field(default=None, description="PEM certificate chain.")
    tls_key: Path | None = Field(default=None, description="PEM private key of the certificate.")
    database_url: str = Field(default="", description="sqlite:///FILE or postgresql://…; empty: SQLite in data_dir.")
    blocks: Literal["auto", "sqlite", "postgresql"] = Field(
        default="auto", description="Where blocks are stored; auto: where the state is."
    )
    migrate: bool | None = Field(
        default=None, description="Bring the database schema up to date at start; unset: on SQLite only."
    )
    log_format: Literal["console", "json"] = Field(default="console", description="How log lines look.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Least severe line.")
    telemetry: TelemetrySettings = TelemetrySettings()
    auth: AuthSettings = AuthSettings()
    stream: StreamSettings = StreamSettings()
    fleet: FleetSettings = FleetSettings()
    incidents: IncidentSettings = IncidentSettings()
    remediation: RemediationSettings = RemediationSettings()
    retention: RetentionSettings = RetentionSettings()
    validation: ValidationSettings = ValidationSettings()
    admission: AdmissionSettings = AdmissionSettings()
    sources: SourceSettings = SourceSettings()
    exposition: ExpositionSettings = ExpositionSettings()
    celery: CelerySettings = CelerySettings()

    @property
    def resolved_database_url(self) -> str:
        return self.database_url or f"sqlite:///{self.data_dir / 'mainstay.db'}"

    @property
    def migrates(self) -> bool:
        return self.resolved_database_url.startswith("sqlite") if self.migrate is None else self.migrate

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach us."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def base_url(self) -> str:
        """Where this process is reached from this machine."""
        host = "127.0.0.1" if self.host in {"0.0.0.0", "::", ""} else self.host  # noqa: S104 - compared, not bound
        scheme = "https" if self.tls_certificate else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"
