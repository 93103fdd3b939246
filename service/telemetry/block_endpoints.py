"""``GET /v1/telemetry/blocks``: stored frames as received, to record a run and replay it on another system.

The contract, for clients:

- The body is ``application/octet-stream``: for each frame 4 bytes of length (unsigned, little-endian), then so many
  bytes that ``mainstay.probes.frame.decode`` reads. Order: time of the first sample, then subject, stream, sequence.
  Both axes and all subjects that touch ``[start, stop)`` Unix seconds, unless ``subject`` (a node or a job) is given.
- One answer holds at most ``limit`` frames (default 4096) and about 64 MiB. Where more follow, the header
  ``X-Mainstay-Next`` carries a cursor: pass it as ``after`` together with the same ``start``, ``stop`` and ``subject``.
  No header: that was all. The cursor is opaque; one that is none is 422 ``bad-cursor``.
- A frame that arrives late, older than where the cursor stands, is not in the rest: begin again to have it.
- ``GET /v1/telemetry/catalogs/{digest}`` returns catalogs other than the built-in ones (``{narrow, wide}``).
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from fastapi.responses import Response, StreamingResponse

from mainstay.probes.core_types import NAME_PATTERN
from mainstay.service.auth.guard import Reader
from mainstay.service.common.pagination import decode_cursor, encode_cursor
from mainstay.service.common.problem import NotFoundError, UnprocessableError
from mainstay.service.common.schemas import QuerySeconds
from mainstay.service.services import ServicesDep
from mainstay.service.telemetry.block_frames import Key, key_of, unbundled
from mainstay.service.telemetry.blocks import BlockKind, BlockStore, StoredBlock
from mainstay.service.telemetry.endpoints import Digest
from mainstay.service.telemetry.schemas import CatalogRead

router = APIRouter(prefix="/v1", tags=["telemetry"])
MAX_FRAMES: Final = 4096
MAX_BYTES: Final = 64 * 2**20
"""After this many the answer ends with the frame that crossed it."""
NEXT: Final = "X-Mainstay-Next"


class UnknownCatalogDigestError(NotFoundError):
    slug, title = "unknown-catalog", "Unknown catalog"


_STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Frames, each after its length (4 bytes, little-endian). X-Mainstay-Next: the next cursor.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        "headers": {NEXT: {"schema": {"type": "string"}, "description": "Cursor for ``after``; absent at the end."}},
    }
}


@router.get("/telemetry/blocks", operation_id="read_blocks", response_class=StreamingResponse, responses=_STREAM)
def read_blocks(
    _: Reader,
    services: ServicesDep,
    *,
    start: Annotated[QuerySeconds, Query(allow_inf_nan=False)],
    stop: Annotated[QuerySeconds, Query(allow_inf_nan=False)],
    subject: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
    after: Annotated[str | None, Query(max_length=1000)] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_FRAMES)] = MAX_FRAMES,
) -> Response:
    """Stored frames, unchanged, oldest first, each after its length (4 bytes).

    ``X-Mainstay-Next`` is the next cursor.
    """
    if not start < stop:
        raise UnprocessableError("start must be earlier than stop")
    beyond = None if after is None else _key(after)
    with closing(_read(services.blocks, start, stop, subject, beyond)) as blocks:
        chosen, more = _choose(blocks, limit)
    headers = {NEXT: encode_cursor(key_of(chosen[-1]))} if more else {}
    return Response(_wire(chosen), media_type="application/octet-stream", headers=headers)


@router.get("/telemetry/catalogs/{digest}", operation_id="get_catalog")
def get_catalog(digest: Digest, _: Reader, services: ServicesDep) -> CatalogRead:
    """The names of the signals behind a digest in frames."""
    compiled = services.ingest.catalogs.load(digest)
    if compiled is None:
        raise UnknownCatalogDigestError(f"no catalog has the digest {digest}")
    return CatalogRead(narrow=list(compiled.catalog.narrow), wide=list(compiled.catalog.wide))


def _read(
    store: BlockStore, start: float, stop: float, subject: str | None, beyond: Key | None
) -> Generator[StoredBlock, None, None]:
    """Frames of both axes, oldest first, after ``beyond``, each once; to be closed, since it holds connections."""
    begin = start if beyond is None else max(start, beyond[0])
    with ExitStack() as stack:
        kinds = [store.read(begin, stop, subject=subject, kinds=[kind]) for kind in BlockKind]
        for blocks in kinds:
            if isinstance(blocks, Generator):
                stack.callback(blocks.close)
        by_time, by_step, bundles = kinds
        last = beyond
        for block in heapq.merge(by_time, by_step, unbundled(bundles, subject), key=key_of):
            if block.start < stop and block.stop >= begin and (last is None or key_of(block) > last):
                last = key_of(block)
                yield block


def _choose(blocks: Iterator[StoredBlock], limit: int) -> tuple[list[StoredBlock], bool]:
    """The first of them, and whether there are more."""
    chosen: list[StoredBlock] = []
    held = 0
    for block in blocks:
        if len(chosen) >= limit or held >= MAX_BYTES:
            return chosen, True
        chosen.append(block)
        held += len(block.body)
    return chosen, False


def _wire(blocks: list[StoredBlock]) -> bytes:
    return b"".join(struct.pack("<I", len(block.body)) + block.body for block in blocks)


def _key(cursor: str) -> Key:
    start, subject, stream, sequence = decode_cursor(cursor, (float, str, str, int))
    return start, subject, stream, sequence
