"""Fixtures of the tests of results.

Both judges must agree in all stories except the stories about a disagreement.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from results.checker import verdict_document

_OPINION = verdict_document.second_opinion


class JudgesDiffer(AssertionError):
    """A disagreement of the judges in a story about another subject."""


_EXPECTED: list[bool] = []


def _strict_opinion(*arguments: Any) -> dict[str, Any]:
    found = _OPINION(*arguments)
    if "differs" in found and not _EXPECTED:
        raise JudgesDiffer(found["differs"])
    return found


@pytest.fixture(scope="session", autouse=True)
def judges_agree() -> Iterator[None]:
    """Make a disagreement of the judges fail the story instead of returning UNKNOWN."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdict_document, "second_opinion", _strict_opinion)
        yield


@pytest.fixture(autouse=True)
def _expected(request: pytest.FixtureRequest) -> Iterator[None]:
    is_expected = request.node.get_closest_marker("judges_differ") is not None
    _EXPECTED.extend([True] * is_expected)
    yield
    _EXPECTED.clear()
