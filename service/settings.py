"""Settings of the service: loaded once by ``mainstay.service.config.load``, passed down, never imported as a global.

Every leaf field is a setting: ``telemetry.ring_seconds`` in a settings file, ``MAINSTAY_TELEMETRY__RING_SECONDS`` in
the environment. ``Settings(...)`` itself reads neither. Fields with ``repr=False`` may hold secrets: print them masked.
"""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from mainstay.service.config.openid_settings import OpenIdSettings
from mainstay.service.config.outgoing_settings import NotificationSettings, RemoteWriteSettings
from mainstay.service.config.setting_types import Address, NetworkList, SettingsGroup, TextList


class AuthSettings(SettingsGroup):
    """Tokens and sessions."""

    session_hours: float = Field(default=24 * 7, gt=0)
    """Lifetime of a browser session, in hours."""
    join_token_hours: float = Field(default=24, gt=0)
    """Default lifetime of a join token, in hours."""
    cache_seconds: float = Field(default=600.0, ge=0)
    """Time for which a checked token stays valid without a new database query, in seconds."""
    revocation_seconds: float = Field(default=1.0, gt=0)
    """Interval at which a process looks for tokens that another process revoked, in seconds."""
    sign_in_code_seconds: float = Field(default=600.0, gt=0, le=3600)
    """Lifetime of a sign-in link, in seconds. It works once."""
    sign_in_failures: int = Field(default=10, ge=1)
    """Failed sign-ins from one address that are answered in one minute. Further ones are answered 429."""
    sign_in_failures_total: int = Field(default=200, ge=1)
    """The same for all addresses together."""


class SourceSettings(SettingsGroup):
    """Scrapes of other monitors."""

    scrape_seconds: float = Field(default=5.0, gt=0, le=60)
    """Longest duration of one scrape, in seconds."""
    max_scrape_bytes: int = Field(default=16 * 1024 * 1024, ge=1024)
    """Largest response of an exporter that the service reads, in bytes."""
    scrape_threads: int = Field(default=8, ge=1, le=64)
    """Scrapes that run at the same time."""
    ca_file: Path | None = None
    """PEM file of authorities to trust for https targets, together with those of the system."""
    allowed_networks: NetworkList = ()
    """Networks such as fd00:12::/32 in which exporters run. Mainstay refuses targets in unique-local, shared
    (100.64.0.0/10), and translated (mapped, NAT64) networks that this list lacks, and every link-local or metadata
    address."""


class QuotaSettings(SettingsGroup):
    """Events and new entities of one token. Further ones are answered 429 and may be sent again later."""

    node_events_per_second: float = Field(default=20.0, gt=0)
    """Events that a node may send for long, per second. A node daemon gathers repeated events itself."""
    node_events_burst: int = Field(default=2000, ge=500)
    """Events that a node may send at once: what its spool holds after an outage of the service."""
    events_per_second: float = Field(default=200.0, gt=0)
    """Events that any other token may send for long, per second. It speaks for many nodes or ranks."""
    events_burst: int = Field(default=20_000, ge=500)
    """Events that any other token may send at once, such as one for each rank of a job that ends."""
    entities_per_second: float = Field(default=10.0, gt=0)
    """Nodes and jobs that a token may announce for long, per second."""
    entities_burst: int = Field(default=20_000, ge=1)
    """Nodes and jobs that a token may announce at once: a whole cluster that boots."""


class TelemetrySettings(SettingsGroup):
    """Telemetry: ingest, memory, and storage."""

    ring_seconds: int = Field(default=900, ge=60, le=86_400)
    """Telemetry kept in memory, in seconds."""
    ring_bytes: int = Field(default=2 * 2**30, ge=2**24)
    """Memory for the telemetry of all devices, in bytes. A large fleet keeps fewer seconds."""
    refill_seconds: int = Field(default=300, ge=0)
    """Telemetry that a starting service reads back into memory, in seconds."""
    commit_interval_seconds: float = Field(default=0.1, gt=0, le=5)
    """Longest wait for a group commit, in seconds. A frame is acknowledged after its commit."""
    max_frame_bytes: int = Field(default=8 * 1024 * 1024, ge=1024)
    """Largest frame that the service accepts, in bytes."""
    max_pending_frames: int = Field(default=20_000, ge=1)
    """Frames that may wait for a commit. The service answers 503 to further frames."""
    retention_hours: int = Field(default=48, ge=1)
    """Telemetry blocks kept as received, in hours. Older frames are refused."""
    step_refill_hours: float = Field(default=6.0, ge=0)
    """Step records that a starting service reads back into memory, in hours."""
    step_ring_steps: int = Field(default=2048, ge=64)
    """Steps of each job kept in memory."""
    step_ring_bytes: int = Field(default=2**30, ge=2**20)
    """Memory for the steps of all jobs, in bytes. A large job keeps fewer steps."""
    progress_ring_seconds: int = Field(default=600, ge=60, le=86_400)
    """Progress of each job kept in memory, in seconds."""
    progress_ring_bytes: int = Field(default=2**29, ge=2**20)
    """Memory for the progress of all jobs, in bytes. A large job keeps fewer seconds."""
    pair_ring_bytes: int = Field(default=2**29, ge=2**20)
    """Memory for the transfers between ranks of all jobs, in bytes."""
    max_future_seconds: float = Field(default=300.0, gt=0)
    """How far the time of a frame may be ahead of the clock of the service, in seconds."""


class HistorySettings(SettingsGroup):
    """History of telemetry: Parquet files by hour with roll-ups."""

    url: Address = Field(default="", repr=False)
    """Absolute path of a directory, or s3://BUCKET/PREFIX with options such as ?region=… and ?endpoint_override=…
    Empty: the directory history in the data directory."""
    grace_seconds: float = Field(default=600.0, ge=0, le=24 * 3600)
    """Time after the end of an hour in which its frames may still arrive before it is compacted, in seconds."""
    raw_days: float = Field(default=7.0, gt=0)
    """Time for which samples are kept at full rate, in days. Incidents keep theirs as long as they are stored."""
    ten_second_days: float = Field(default=30.0, gt=0)
    """Time for which roll-ups of 10 s are kept in the same way, in days."""
    minute_days: float = Field(default=90.0, gt=0)
    """Time for which roll-ups of 1 min are kept, in days."""
    ten_minute_days: float = Field(default=400.0, gt=0)
    """Time for which roll-ups of 10 min are kept, in days."""


class StreamSettings(SettingsGroup):
    """Live updates of the dashboard and of API clients."""

    poll_interval_seconds: float = Field(default=0.15, gt=0)
    """Interval at which the service looks for new changes, in seconds."""
    keep_alive: float = Field(default=15.0, gt=0)
    """Interval of the comments that keep an idle stream open, in seconds."""
    max_lifetime_seconds: float = Field(default=600.0, gt=0)
    """Time after which the service ends a stream, in seconds. The client then connects again."""
    keep_changes: int = Field(default=50_000, ge=1000)
    """Changes kept for clients that resume a stream."""
    max_watchers: int = Field(default=200, ge=1)
    """Largest number of streams open at the same time."""


class FleetSettings(SettingsGroup):
    """Nodes."""

    heartbeat_timeout_seconds: float = Field(default=10.0, gt=0)
    """Time without a report after which the state of a node is unknown, in seconds."""


class IncidentSettings(SettingsGroup):
    """The detection loop and the life cycle of an incident."""

    detection_interval_seconds: float = Field(default=1.0, gt=0, le=60)
    """Interval between two passes of the detection loop, in seconds."""
    plan_timeout_seconds: float = Field(default=15.0, gt=0)
    """Time after which a stopped job without a recovery plan needs an operator, in seconds."""
    escalation_timeout_seconds: float = Field(default=120.0, gt=0)
    """Time after which any other open incident that does not clear needs an operator, in seconds."""
    recovery_timeout_seconds: float = Field(default=300.0, gt=0)
    """Time after which an unfinished recovery needs an operator, in seconds."""
    verify_timeout_seconds: float = Field(default=60.0, gt=0)
    """Time after which an unverified recovery needs an operator, in seconds."""
    clear_after_seconds: float = Field(default=30.0, gt=0)
    """Time without findings that verifies an incident without a recovery, in seconds."""
    close_after_seconds: float = Field(default=60.0, gt=0)
    """Time after which a verified incident closes, in seconds."""
    event_lookback_seconds: float = Field(default=3600.0, ge=0)
    """Age up to which stored events are given to the detectors after a restart, in seconds."""
    shared_fault_nodes: int = Field(default=3, ge=2)
    """Least number of nodes with related findings that makes one incident of what they share, such as a rack. Nodes
    of such an incident are no lemons."""


class RemediationSettings(SettingsGroup):
    """Remediation of nodes with findings. By default Mainstay only proposes."""

    mode: Literal["dry_run", "automatic"] = "dry_run"
    """dry_run: every remediation waits for an operator. automatic: Mainstay carries out those that every rule
    allows."""
    migrate: Literal["off", "manual", "automatic"] = "manual"
    """Whether Mainstay asks jobs to move ranks off a running node with findings. off: never. manual: after an
    operator accepts it. automatic: at once where every rule allows it."""
    interval_seconds: float = Field(default=1.0, gt=0, le=60)
    """Interval at which Mainstay evaluates findings and drains, in seconds."""
    min_confidence: float = Field(default=0.9, ge=0.5, le=1)
    """Least confidence of a finding that proposes a remediation, from 0.5 to 1."""
    boot_grace_seconds: float = Field(default=300.0, ge=0)
    """Time after a boot in which a node is not remediated, in seconds: links and managers still start."""
    max_drained_ratio: float = Field(default=0.05, ge=0, le=1)
    """Largest share of the fleet that Mainstay drains in one window, from 0 to 1."""
    min_drain_budget: int = Field(default=1, ge=0)
    """Nodes that Mainstay may drain in one window, also in a small fleet."""
    max_drained_per_rack: int = Field(default=2, ge=0)
    """Largest number of nodes of one rack that Mainstay drains in one window."""
    window_seconds: float = Field(default=3600.0, gt=0)
    """Window of the circuit breaker, in seconds."""
    drain_timeout_seconds: float | None = Field(default=1800.0, gt=0)
    """Time after which a drain ends in quarantine even if work is left, in seconds. Without an operator's acceptance,
    it waits for a job that cannot continue without the node."""
    recurrence_days: float = Field(default=7.0, gt=0)
    """Time within which a fault that returns gets the next stronger recommended action, in days."""
    suite: Literal["quick", "standard", "deep"] = "standard"
    """Weakest suite that returns a node to service: quick, standard, or deep."""


class RetentionSettings(SettingsGroup):
    """Deletion of closed records. Active records are kept."""

    days: float = Field(default=90.0, ge=1)
    """Time for which closed incidents, events, and node state changes are kept, in days."""
    history_days: float = Field(default=400.0, ge=1)
    """Time for which ended jobs, recoveries, validations, localizations, and check selections are kept, in days.
    Check selection learns from the last 365."""
    interval_seconds: float = Field(default=300.0, gt=0)
    """Interval between two rounds of deletion, in seconds."""
    batch: int = Field(default=500, ge=1, le=5000)
    """Largest number of rows of each kind that one round deletes."""


class ExpositionSettings(SettingsGroup):
    """Series of single devices in /metrics."""

    gpus: bool = True
    """Whether /metrics has a series for every signal of every GPU."""
    hosts: bool = True
    """Whether /metrics has a series for every signal of every host."""
    ports: bool = True
    """Whether /metrics has a series for every signal of every network port."""
    nodes: bool = True
    """Whether /metrics has the state of every node."""
    stale_seconds: int = Field(default=45, ge=5, le=600)
    """Age after which /metrics leaves out a value, in seconds. Choose more than any scrape interval."""


class ValidationSettings(SettingsGroup):
    """Validations and sweeps."""

    deadline_factor: float = Field(default=5.0, ge=1)
    """A validation expires after the expected duration of its suite times this factor."""
    deadline_seconds: float = Field(default=300.0, gt=0)
    """Shortest time after which a validation expires, in seconds."""
    poll_interval_seconds: float = Field(default=0.5, gt=0)
    """Interval at which the service looks for tasks of waiting nodes, in seconds."""
    keep_runs: int = Field(default=20, ge=1)
    """Runs that the answer about a sweep lists."""
    occupied_wait_hours: float = Field(default=24.0, gt=0)
    """A validation waits at most so long for a job to leave its node, then it is skipped, in hours. One of a sweep is
    skipped when the sweep is due again, if that is earlier."""


class AdmissionSettings(SettingsGroup):
    """Admission checks for schedulers."""

    suite: str = "quick"
    """Weakest suite whose PASS counts in full: quick, standard, or deep."""
    max_age_hours: float = Field(default=168.0, gt=0)
    """Age after which a validation counts less, in hours."""


class CelerySettings(SettingsGroup):
    """Background tasks and sweeps."""

    broker_url: str = Field(default="memory://", repr=False)
    """URL of the Celery broker: memory:// inside one process, or redis://…"""
    tick_seconds: float = Field(default=5.0, gt=0)
    """Interval at which beat looks for due sweeps and expired validations, in seconds."""
    concurrency: int = Field(default=4, ge=1, le=256)
    """Tasks that run at the same time in the embedded worker."""


class ClusterSettings(SettingsGroup):
    """Several processes of the service on one PostgreSQL."""

    role: Literal["all", "gateway"] = "all"
    """What this process does: all, or gateway. A gateway accepts what nodes and jobs send, and does nothing else."""
    lease_seconds: float = Field(default=2.0, ge=1, le=60)
    """Time after which another process takes over the work of one that no longer renews its leases, in seconds."""


class Settings(BaseSettings):
    """Everything that may be configured."""

    model_config = SettingsConfigDict(
        env_prefix="MAINSTAY_",
        env_nested_delimiter="__",
        enable_decoding=False,  # no JSON in variables: each setting has its own
        extra="forbid",
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    data_dir: Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())] = Path("~/.mainstay")
    """Directory of the database, the blocks, and the admin token."""
    host: str = "127.0.0.1"
    """Address to listen on. The default accepts connections from this machine only."""
    port: int = Field(default=8080, ge=0, le=65_535)
    """TCP port to listen on. 0 takes a free one."""
    insecure_listen: bool = False
    """Whether to listen beyond loopback without TLS. Tokens then travel in clear text."""
    tls_certificate: Path | None = None
    """PEM file of the TLS certificate chain."""
    tls_key: Path | None = None
    """PEM file of the private key of the certificate."""
    tls_client_ca: Path | None = None
    """PEM file of the authority that signs client certificates. If set, a node needs a certificate whose common
    name or DNS name is the name of the node."""
    allowed_hosts: TextList = ()
    """Host names under which clients reach the service, such as mainstay.example or *.example. Loopback names and
    the address to listen on are always allowed, * allows all."""
    header_timeout_seconds: float = Field(default=10.0, gt=0)
    """Time after which a connection that has not sent the whole header of a request is closed, in seconds."""
    body_timeout_seconds: float = Field(default=20.0, gt=0)
    """Time in which 64 KiB of the body of a request, or the rest of it, must arrive, in seconds. Otherwise the
    service answers 408 and closes the connection."""
    database_url: str = Field(default="", repr=False)
    """sqlite:///FILE or postgresql://… Empty: SQLite in the data directory."""
    blocks: Literal["auto", "sqlite", "postgresql"] = "auto"
    """Where telemetry blocks are stored: sqlite, postgresql, or auto (in the database of the service)."""
    migrate: bool | None = None
    """Whether to bring the database schema up to date at start. Not set: on SQLite only."""
    log_format: Literal["console", "json"] = "console"
    """Format of log lines: console or json."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe log line that is written: debug, info, warning, or error."""
    telemetry: TelemetrySettings = TelemetrySettings()
    history: HistorySettings = HistorySettings()
    auth: AuthSettings = AuthSettings()
    openid: OpenIdSettings = OpenIdSettings()
    stream: StreamSettings = StreamSettings()
    fleet: FleetSettings = FleetSettings()
    incidents: IncidentSettings = IncidentSettings()
    remediation: RemediationSettings = RemediationSettings()
    retention: RetentionSettings = RetentionSettings()
    notifications: NotificationSettings = NotificationSettings()
    validation: ValidationSettings = ValidationSettings()
    admission: AdmissionSettings = AdmissionSettings()
    sources: SourceSettings = SourceSettings()
    exposition: ExpositionSettings = ExpositionSettings()
    remote_write: RemoteWriteSettings = RemoteWriteSettings()
    celery: CelerySettings = CelerySettings()
    quotas: QuotaSettings = QuotaSettings()
    cluster: ClusterSettings = ClusterSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Use arguments only: ``mainstay.service.config.load`` checks and merges the other sources."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)

    @property
    def resolved_database_url(self) -> str:
        return self.database_url or f"sqlite:///{self.data_dir / 'mainstay.db'}"

    @property
    def history_url(self) -> str:
        return self.history.url or str(self.data_dir / "history")

    @property
    def dashboard_url(self) -> str:
        return (self.notifications.dashboard_url or self.base_url).rstrip("/")

    @property
    def secrets_dir(self) -> Path:
        return self.notifications.secrets_dir or self.data_dir / "secrets"

    @property
    def migrates(self) -> bool:
        return self.resolved_database_url.startswith("sqlite") if self.migrate is None else self.migrate

    @property
    def is_gateway(self) -> bool:
        return self.cluster.role == "gateway"

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
