"""Named bugs of durable subscriptions: what a mistake in one of their rules looks like.

Paper: [DS03] §3, §4, rule by rule.
"""

from typing import Final

from brokerd.named_bugs import Edit, NamedBug

_FOLDER: Final = "brokerd/protocols/durable"


def _bug(name: str, file: str, *texts: tuple[str, str]) -> NamedBug:
    return NamedBug(name, tuple(Edit(f"{_FOLDER}/{file}", *text) for text in texts))


BUGS: Final = (
    _bug(
        "previous-of-another",
        "filter_log.py",
        (
            "previous = [self._newest.get(each, NO_RECORD) for each in subscriptions]",
            "previous = [self._next - 1 or NO_RECORD for each in subscriptions]",
        ),
    ),
    _bug(
        "chopped-is-silent",
        "batch_read.py",
        ("limit = max(self._limit, log.chopped_tick)", "limit = self._after"),
    ),
    _bug(
        "newest-in-place-of-oldest",
        "batch_read.py",
        ("self._upto = self._found.pop() - 1", "self._found.popleft()"),
    ),
    _bug(
        "written-twice",
        "filter_log.py",
        ("if tick <= self.last_tick:", "if tick < self.last_tick - 8:"),
    ),
)
"""What each leaves out: a record names the one before of the same subscription; nobody knows for
whom chopped ticks were; a batch that is full has the oldest; what comes again is written once.
"""

MUTANTS: Final = {bug.name: bug for bug in BUGS}
"""By name."""
