"""delta_tree as its driver sees it."""

import pytest

from tests.protocols.conformance import *  # noqa: F403


@pytest.fixture
def protocol():
    return "delta_tree"
