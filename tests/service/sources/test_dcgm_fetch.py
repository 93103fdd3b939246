"""A scraped host cannot hold, flood or redirect the service."""

from __future__ import annotations

import time
from http.server import BaseHTTPRequestHandler

import pytest

from mainstay.service.common.outgoing_request import check_url
from mainstay.service.sources.dcgm.fetch import FetchError, fetch
from tests.service.sources.exporter import Exporter, old_text


def get(exporter: Exporter, *, seconds: float = 5.0, max_bytes: int = 1_000_000) -> str:
    return fetch(exporter.url, seconds=seconds, max_bytes=max_bytes)


def test_the_text_comes_whole(exporter: Exporter) -> None:
    assert get(exporter) == old_text()


def test_a_body_without_a_length_comes_whole(exporter: Exporter) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(b"a 1\n" * 1000)

    exporter.answer = answer
    assert len(get(exporter)) == 4000


def test_one_that_hangs_costs_the_time_limit_and_no_more(exporter: Exporter) -> None:
    exporter.answer = lambda _handler: exporter.over.wait(30) and None
    began = time.monotonic()
    with pytest.raises(FetchError, match="within"):
        get(exporter, seconds=0.3)
    assert time.monotonic() - began < 2.0


@pytest.mark.parametrize("where", ["headers", "body"])
def test_one_that_drips_costs_the_time_limit_and_no_more(exporter: Exporter, where: str) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        if where == "body":
            handler.send_response(200)
            handler.end_headers()
        for _ in range(300):
            if exporter.over.wait(0.05):
                return
            handler.wfile.write(b"H")
            handler.wfile.flush()

    exporter.answer = answer
    began = time.monotonic()
    with pytest.raises(FetchError):
        get(exporter, seconds=0.4)
    assert time.monotonic() - began < 2.0


@pytest.mark.parametrize("announced", [True, False])
def test_a_huge_answer_is_not_read(exporter: Exporter, *, announced: bool) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        if announced:
            handler.send_header("Content-Length", str(10**12))
        handler.end_headers()
        try:
            while not exporter.over.is_set():
                handler.wfile.write(b"x" * 65536)
        except OSError:
            return

    exporter.answer = answer
    with pytest.raises(FetchError, match="more than 100000 bytes"):
        get(exporter, max_bytes=100_000)


def test_a_redirect_is_not_followed(exporter: Exporter) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", exporter.url + "/redirected")
        handler.end_headers()

    exporter.answer = answer
    with pytest.raises(FetchError, match="redirects are not followed"):
        get(exporter)
    assert exporter.asked == 1


@pytest.mark.parametrize("status", [204, 404, 500, 503])
def test_only_200_counts(exporter: Exporter, status: int) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.end_headers()

    exporter.answer = answer
    with pytest.raises(FetchError, match=str(status)):
        get(exporter)


def test_an_answer_that_is_cut_off_is_none(exporter: Exporter) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "5000")
        handler.end_headers()
        handler.wfile.write(b"a 1\n")

    exporter.answer = answer
    with pytest.raises(FetchError):
        get(exporter)


def test_bytes_that_are_no_text_are_refused(exporter: Exporter) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(b"\xff\xfe")

    exporter.answer = answer
    with pytest.raises(FetchError, match="UTF-8"):
        get(exporter)


def test_nobody_there(free_port) -> None:
    with pytest.raises(FetchError, match="Refused"):
        fetch(f"http://127.0.0.1:{free_port()}/metrics", seconds=2.0, max_bytes=1000)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd", "ftp://h/x", "http://", "//h/metrics", "http://u:p@h/", "http://h/#f", "gopher://h",
        "http://169.254.169.254/latest/meta-data", "http://[fe80::1]/", "http://0.0.0.0:9400/", "http://h:0/",
        "http://h:99999/", "http://h/a b", "http://h/\r\nHost: x", "http://hö/", "http://224.0.0.1/",
    ],
)  # fmt: skip
def test_addresses_that_are_no_targets(url: str) -> None:
    with pytest.raises(ValueError):
        check_url(url)


@pytest.mark.parametrize(
    "url", ["http://h:9400/metrics", "https://gpu-7.example", "http://10.0.0.1:9400", "http://[::1]:1/"]
)
def test_addresses_of_targets(url: str) -> None:
    assert check_url(url).hostname
