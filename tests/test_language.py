"""Tests of the language of docstrings: no package may get worse.

`tests/language.json` has the best measures that every package has reached. A package that has
reached a goal stays there. `python -m tests.test_language` records better measures.
"""

import json
from pathlib import Path

import pytest

from tests.helpers.language import GOALS, measure, measures

ROOT = Path(__file__).parents[1]
RATCHET = Path(__file__).parent / "language.json"
TOPS = ("brokerd", "bench", "fault_injection", "pubsubctl", "results", "tests")

REACHED: dict[str, dict[str, float]] = json.loads(RATCHET.read_text("utf-8"))


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, float]]:
    """Return the measures of all packages."""
    return measures(ROOT, TOPS)


def test_the_language_of_no_package_gets_worse(found: dict[str, dict[str, float]]) -> None:
    worse = {
        f"{package}: {name}": (value, allowed[name])
        for package, values in found.items()
        for allowed in [REACHED.get(package, GOALS)]
        for name, value in values.items()
        if value > max(allowed[name], GOALS[name])
    }
    assert worse == {}, "measure: (found, allowed); see CONTRIBUTING.md, Language"


def test_a_removed_package_is_absent_from_the_table(found: dict[str, dict[str, float]]) -> None:
    assert [package for package in REACHED if package not in found] == []


@pytest.mark.parametrize(
    "text, name",
    [
        ("What a broker keeps.", "clauses"),
        ("Of a stream, its end.", "clauses"),
        ("Whether a session is up.", "clauses"),
        ("Return the broker who is next.", "who"),
        ("Return those of them.", "pronouns"),
        ("Tell a client.", "verbs"),
    ],
)
def test_each_habit_is_measured(text: str, name: str) -> None:
    assert measure([text])[name] > GOALS[name]


def test_plain_sentences_reach_every_goal() -> None:
    found = measure(["Return the session of a peer.", "A send window shared by two streams."])
    assert all(found[name] <= goal for name, goal in GOALS.items())


if __name__ == "__main__":
    best = {
        package: {
            name: min(value, REACHED.get(package, found)[name]) for name, value in found.items()
        }
        for package, found in measures(ROOT, TOPS).items()
    }
    RATCHET.write_text(json.dumps(best, indent=1) + "\n", encoding="utf-8")
