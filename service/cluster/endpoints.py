"""``/v1/cluster``: the processes of the service."""

from __future__ import annotations

from fastapi import APIRouter

from mainstay.service.auth.guard import Reader
from mainstay.service.cluster import status
from mainstay.service.cluster.schemas import ClusterRead
from mainstay.service.common.db import Reading
from mainstay.service.services import ServicesDep

router = APIRouter(prefix="/v1", tags=["cluster"])


@router.get("/cluster", operation_id="get_cluster")
def get_cluster(_reader: Reader, services: ServicesDep, session: Reading) -> ClusterRead:
    """The processes of the service, and which of them holds which lease."""
    if services.database.is_sqlite:
        return status.read_single(services.leases, services.ingest.writer.pending)
    return status.read_shared(session, services.settings.cluster.lease_seconds)
