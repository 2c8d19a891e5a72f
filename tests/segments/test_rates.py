"""Rolling rates on a clock that the test moves."""

import pytest

from scalable_topics.segments.rates import WINDOW_SECONDS, RollingRates


def test_a_steady_flow_is_its_rate() -> None:
    rates = RollingRates(now=100.5)
    for tenth in range(300):
        now = 100.5 + tenth / 10
        rates.record_in(5, 500, now=now)
        rates.record_out(1, 100, now=now)

    found = rates.rates(now=130.4)

    assert found == pytest.approx((50, 5_000, 10, 1_000), rel=0.02)


def test_before_the_first_window_is_full_it_is_over_the_time_there_was() -> None:
    rates = RollingRates(now=7)
    rates.record_in(40, 400, now=8)

    assert rates.rates(now=7.1)[0] == 40, "less than a second counts as one"
    assert rates.rates(now=11) == (10, 100, 0, 0)


def test_what_is_over_is_forgotten_also_after_a_long_silence() -> None:
    rates = RollingRates(now=0)
    rates.record_in(100, 100, now=1)

    assert rates.rates(now=WINDOW_SECONDS)[0] > 0
    assert rates.rates(now=2 + WINDOW_SECONDS) == (0, 0, 0, 0)
    rates.record_in(100, 100, now=1_000_000)
    assert rates.rates(now=1_000_000)[0] == 10
    assert rates.rates(now=999_999)[0] > 0, "a clock that falls back loses nothing"
