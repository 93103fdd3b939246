"""Answers in the encoding that a client accepts."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Any

import brotli
import pytest
import zstandard

from mainstay.service.common.compression import CachedBody, choose, stream

DECODERS: dict[str, Callable[[bytes], bytes]] = {
    "zstd": lambda body: zstandard.ZstdDecompressor().decompressobj().decompress(body),
    "br": brotli.decompress,
    "gzip": gzip.decompress,
}


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", None), ("identity", None), ("gzip", "gzip"), ("gzip, deflate, br", "br"), ("gzip, br, zstd", "zstd"),
        ("zstd;q=0, gzip;q=0.5", "gzip"), ("*", "zstd"), ("*;q=0", None), ("GZIP ; q=1.0", "gzip"), (";;,,q=", None),
    ],
)  # fmt: skip
def test_the_best_that_is_accepted_is_chosen(accept: str, chosen: str | None) -> None:
    assert choose(accept) == chosen


def test_a_cached_body_is_made_once_an_encoding() -> None:
    cached = CachedBody(b"abc" * 1000)
    for encoding, decode in DECODERS.items():
        assert decode(cached.get(encoding)) == cached.get(None)
        assert cached.get(encoding) is cached.get(encoding)


def test_parts_are_compressed_as_one_stream() -> None:
    parts = [b"abc" * 100_000, b"", b"def"]
    for encoding, decode in DECODERS.items():
        assert decode(b"".join(stream(parts, encoding))) == b"".join(parts)
    assert list(stream(parts, None)) == parts


@pytest.mark.parametrize("encoding", sorted(DECODERS))
@pytest.mark.parametrize("path", ["/v1/fleet/heatmap-layout", "/openapi.json", "/metrics"])
def test_reads_are_compressed(lasting_service: Any, path: str, encoding: str) -> None:
    client = lasting_service.client()

    def read(accept: str) -> tuple[dict[str, str], bytes]:
        with client.stream("GET", path, headers={"Accept-Encoding": accept}) as answer:
            assert answer.status_code == 200
            return dict(answer.headers), b"".join(answer.iter_raw())

    headers, body = read(encoding)
    assert headers["content-encoding"] == encoding
    assert "Accept-Encoding" in headers["vary"].split(", ")
    plain_headers, plain = read("identity")
    assert "content-encoding" not in plain_headers
    if path != "/metrics":  # its numbers move
        assert DECODERS[encoding](body) == plain


def test_small_answers_streams_and_actions_are_not(lasting_service: Any) -> None:
    client = lasting_service.client(None, **{"Accept-Encoding": "zstd, br, gzip"})
    assert "content-encoding" not in client.get("/healthz").headers
    nodes = [f"absent{number}" for number in range(200)]
    acted = client.post("/v1/admission", json={"job": "llm", "nodes": nodes})
    assert len(acted.content) > 10_000
    assert "content-encoding" not in acted.headers
    with client.stream("GET", "/v1/watch") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert "content-encoding" not in stream.headers
