"""Conformance of delta_tree to the interface of its driver."""

import pytest

from tests.protocols.conformance import *  # noqa: F403


@pytest.fixture
def protocol():
    return "delta_tree"
