"""The files of a run folder as witnesses against each other.

A verdict rests on record files, the fault log and the specification. Each module compares facts
that two files of a folder record independently. Where the files differ, the module yields a doubt
that names both. A false entry in one file is found; a folder that is false in all files alike is
not.

Both judges ask `doubts_of_witnesses`. Each counts the rows of record files with its own reader.
A file that a folder of an older schema never had is no doubt.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

from results.rules.terms import doubt
from results.witnesses.applications import doubts_about_applications
from results.witnesses.broker_events import doubts_about_events
from results.witnesses.brokers import doubts_about_brokers
from results.witnesses.causality import doubts_about_causality
from results.witnesses.counters import doubts_about_counters
from results.witnesses.faults import doubts_about_faults
from results.witnesses.figures import doubts_about_figures
from results.witnesses.folder import RunFolder
from results.witnesses.gaps import doubts_about_gaps
from results.witnesses.incarnations import doubts_about_incarnations
from results.witnesses.journal import doubts_about_journal
from results.witnesses.manifest import doubts_about_manifest
from results.witnesses.passage import doubts_about_passage, doubts_about_pauses
from results.witnesses.process_ends import doubts_about_closing
from results.witnesses.promises import doubts_about_promises
from results.witnesses.records import doubts_about_records
from results.witnesses.rows import Rows
from results.witnesses.service import doubts_about_service
from results.witnesses.sessions import doubts_about_sessions
from results.witnesses.settings import doubts_about_settings
from results.witnesses.shapes import doubts_about_shapes
from results.witnesses.sources import doubts_about_sources
from results.witnesses.summary import doubts_about_processes
from results.witnesses.values import doubts_about_values

_MALFORMED = (
    *(ArithmeticError, AssertionError, AttributeError),
    *(IndexError, KeyError, TypeError, ValueError),
)


def doubts_of_witnesses(folder: RunFolder, rows: Rows) -> tuple[str, ...]:
    """Return the differences between the files of a run folder, without repeats.

    Args:
        rows: the counts of record files by the judge that calls.
    """
    both: tuple[Callable[[RunFolder, Rows], Iterator[str]], ...] = (
        doubts_about_sources,
        doubts_about_gaps,
        doubts_about_passage,
        doubts_about_pauses,
        doubts_about_processes,
        doubts_about_service,
        doubts_about_manifest,
        doubts_about_figures,
        doubts_about_applications,
        doubts_about_counters,
        doubts_about_records,
    )
    small: tuple[Callable[[RunFolder], Iterator[str]], ...] = (
        doubts_about_promises,
        doubts_about_faults,
        doubts_about_brokers,
        doubts_about_sessions,
        doubts_about_settings,
        doubts_about_causality,
        doubts_about_closing,
        doubts_about_events,
        doubts_about_values,
        doubts_about_shapes,
        doubts_about_journal,
        doubts_about_incarnations,
    )
    found = [
        *(each for rule in small for each in _doubts_by(rule.__name__, partial(rule, folder))),
        *(each for rule in both for each in _doubts_by(rule.__name__, partial(rule, folder, rows))),
    ]
    torn = (
        doubt("unreadable", file=name, why=why) for name, why in sorted(folder.unreadable.items())
    )
    return tuple(dict.fromkeys(chain(found, torn)))


def _doubts_by(rule: str, doubts: Callable[[], Iterator[str]]) -> list[str]:
    """Return the doubts of a rule, with one more for content that breaks the rule."""
    found: list[str] = []
    try:
        found.extend(doubts())
    except _MALFORMED as error:
        name = rule.removeprefix("doubts_about_")
        found.append(
            doubt("unreadable", file=f"a file about {name}", why=f"{type(error).__name__}: {error}")
        )
    return found


__all__ = ["Rows", "RunFolder", "doubts_of_witnesses"]
