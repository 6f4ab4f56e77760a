"""Conformance of best_effort to the interface of its driver."""

import pytest

from tests.protocols.conformance import *  # noqa: F403


@pytest.fixture
def protocol():
    return "best_effort"
