"""ges as its driver sees it: brokers of one cluster, linked as a tree."""

import pytest

from tests.protocols.conformance import *  # noqa: F403


@pytest.fixture
def protocol():
    return "ges"
