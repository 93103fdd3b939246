"""How many sign-ins may fail, by a clock of the test."""

from __future__ import annotations

import pytest

from mainstay.service.auth import throttle as module
from mainstay.service.auth.throttle import SignInThrottle
from mainstay.service.common.problem import TooManyRequestsError


class Ticks:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


def fail(throttle: SignInThrottle, address: str, times: int) -> None:
    for _ in range(times):
        throttle.begin_attempt(address)


def test_attempts_return_one_by_one(ticks: Ticks) -> None:
    throttle = SignInThrottle(6, 100, ticks)
    fail(throttle, "192.0.2.1", 6)
    with pytest.raises(TooManyRequestsError) as caught:
        throttle.begin_attempt("192.0.2.1")
    assert caught.value.headers == {"Retry-After": "10"}
    ticks.now = 10.0
    throttle.begin_attempt("192.0.2.1")
    with pytest.raises(TooManyRequestsError):
        throttle.begin_attempt("192.0.2.1")


def test_one_address_does_not_stop_another_and_all_together_are_bounded(ticks: Ticks) -> None:
    throttle = SignInThrottle(2, 5, ticks)
    fail(throttle, "192.0.2.1", 2)
    fail(throttle, "192.0.2.2", 2)
    fail(throttle, "192.0.2.3", 1)
    with pytest.raises(TooManyRequestsError):
        throttle.begin_attempt("192.0.2.4")


def test_a_refused_attempt_and_a_success_cost_nothing(ticks: Ticks) -> None:
    throttle = SignInThrottle(1, 2, ticks)
    for _ in range(10):
        throttle.begin_attempt("192.0.2.1")
        throttle.return_attempt("192.0.2.1")
    fail(throttle, "192.0.2.1", 1)
    for _ in range(10):
        with pytest.raises(TooManyRequestsError):
            throttle.begin_attempt("192.0.2.1")
    throttle.begin_attempt("192.0.2.2")


def test_the_addresses_of_one_ipv6_network_are_one(ticks: Ticks) -> None:
    throttle = SignInThrottle(1, 10, ticks)
    throttle.begin_attempt("2001:db8::1")
    with pytest.raises(TooManyRequestsError):
        throttle.begin_attempt("2001:db8::2")
    throttle.begin_attempt("2001:db8:0:1::1")


def test_remembered_addresses_are_bounded(ticks: Ticks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ADDRESSES", 3)
    throttle = SignInThrottle(1, 1000, ticks)
    for number in range(10):
        throttle.begin_attempt(f"192.0.2.{number}")
    assert len(throttle._by_address) == 3
