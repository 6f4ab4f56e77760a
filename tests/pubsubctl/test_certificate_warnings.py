"""Tests of warnings about the certificates of running brokers."""

from datetime import UTC, datetime, timedelta

import pytest

from pubsubctl.deployment.certificates import warn_of_expiry


@pytest.mark.parametrize(
    "days, warning",
    [
        ([90], ""),
        ([-1], "the certificate of b0 has ended, the first "),
        ([-1, -2], "the certificates of b1, b0 have ended, the first "),
        ([1, 90], "the certificate of b0 ends soon, the first "),
        ([2, 1], "the certificates of b1, b0 end soon, the first "),
    ],
)
def test_a_warning_names_the_brokers_in_order_of_time(days: list[int], warning: str) -> None:
    now = datetime.now(UTC)
    ends = {f"b{number}": now + timedelta(days=each) for number, each in enumerate(days)}
    found = warn_of_expiry(ends)
    assert found.startswith(warning)
    assert bool(found) == bool(warning)
