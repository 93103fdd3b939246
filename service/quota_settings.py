"""Settings of how much one token may send."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class QuotaSettings(BaseModel):
    """Events and new entities of one token. Further ones are answered 429 and may be sent again later."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    node_events_per_second: float = Field(
        default=20.0,
        gt=0,
        description="Events that a node may send for long, per second. A node daemon gathers repeated events itself.",
    )
    node_events_burst: int = Field(
        default=2000,
        ge=500,
        description="Events that a node may send at once: what its spool holds after an outage of the service.",
    )
    events_per_second: float = Field(
        default=200.0,
        gt=0,
        description="Events that any other token may send for long, per second. It speaks for many nodes or ranks.",
    )
    events_burst: int = Field(
        default=20_000,
        ge=500,
        description="Events that any other token may send at once, such as one for each rank of a job that ends.",
    )
    entities_per_second: float = Field(
        default=10.0, gt=0, description="Nodes and jobs that a token may announce for long, per second."
    )
    entities_burst: int = Field(
        default=20_000,
        ge=1,
        description="Nodes and jobs that a token may announce at once: a whole cluster that boots.",
    )
