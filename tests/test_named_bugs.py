"""A named bug is planted in a process, is gone afterwards, and cannot rot unseen."""

import sys
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from brokerd import named_bugs
from brokerd.named_bugs import BugNotFound, Edit, NamedBug, planted
from brokerd.simulator.checks.protocol_checks import named_bugs as named_bugs_of_protocols

SOURCE = '''
"""A till."""
from contextlib import contextmanager
PRICE = 3

def total(count):
    def each():
        return PRICE
    return each() * count

class Till:
    open = True

    def __init__(self):
        self.sum = 0

    @property
    def full(self):
        return self.sum > 10

    @full.setter
    def full(self, value):
        self.sum = 11 if value else 0

    @staticmethod
    def name():
        return "till"

    @contextmanager
    def day(self):
        self.sum = 1
        yield
'''


@pytest.fixture
def till(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "till.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "till", raising=False)
    monkeypatch.setattr(named_bugs, "_ROOT", tmp_path)
    uncached = named_bugs.mistaken_functions.__wrapped__
    monkeypatch.setattr(named_bugs, "mistaken_functions", lru_cache(uncached))
    return import_module("till")


def bug(text: str, mistaken: str) -> NamedBug:
    return NamedBug("some", "Nothing.", (Edit("till.py", text, mistaken),))


def test_functions_methods_and_what_decorates_them_are_mistaken_for_a_while(till: Any) -> None:
    bugs = (
        bug("each() * count", "each() + count"),
        bug("self.sum > 10", "self.sum > 100"),
        bug("11 if value", "12 if value"),
        bug('"till"', '"drawer"'),
        bug("self.sum = 1\n", "self.sum = 2\n"),
    )
    till_now, reference = till.Till(), till.total
    till_now.sum = 50
    for _ in range(2):
        with planted(bugs):
            assert (reference(4), till_now.full, till_now.name()) == (7, False, "drawer")
            with till.Till.day(till_now), planted(bugs):
                assert till_now.sum == 2
            till_now.full = True
            assert till_now.sum == 12
        assert (reference(4), till_now.full, till_now.name()) == (12, True, "till")
    with pytest.raises(AssertionError, match="are planted, so"), planted(bugs), planted(bugs[:1]):
        pass
    with pytest.raises(ZeroDivisionError), planted(bugs):
        raise ZeroDivisionError
    assert till.Till.name() == "till"


@pytest.mark.parametrize(
    "text, mistaken, why",
    [
        ("each() / count", "0", "0 times"),
        ("self.sum", "0", "4 times"),
        ("PRICE = 3", "PRICE = 4", "only that"),
        ("open = True", "open = False", "only that"),
        ("def name():", "def name(self=0):", "only that"),
        ("each() * count", "each()  *  count", "only that"),
        ('return "till"', "return __class__.open", "other names of its surroundings"),
    ],
)
def test_a_row_that_does_not_fit_is_an_error(till: Any, text: str, mistaken: str, why: str) -> None:
    with pytest.raises(BugNotFound, match=why), planted([bug(text, mistaken)]):
        pass
    assert till.total(1) == 3


def test_every_bug_of_a_protocol_says_in_a_sentence_what_it_leaves_out() -> None:
    for bug in named_bugs_of_protocols().values():
        assert bug.leaves_out[0].isupper(), bug.name
        assert bug.leaves_out.endswith("."), bug.name
