"""Conformance of ges to the interface of its driver, with brokers of a cluster in a tree."""

import pytest

from tests.protocols.conformance import *  # noqa: F403


@pytest.fixture
def protocol():
    return "ges"
