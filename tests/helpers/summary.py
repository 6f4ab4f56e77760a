"""What a test wants to have said at the end of the whole run, passed or not."""

import pytest

SUMMARY = pytest.StashKey[list[str]]()
