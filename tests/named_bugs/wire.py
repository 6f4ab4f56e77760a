"""Mistakes in the wire: what is passed on as it came, and what a header may claim."""

from typing import Final

from tests.helpers.planted_stories import Row

_WIRE: Final = "brokerd/wire/"
_STORIES: Final = "tests/wire/test_codec.py::"
_PASSED_ON: Final = (
    _STORIES + "test_a_received_run_is_passed_on_as_it_came_and_a_part_of_it_as_what_it_is"
)
_IN_A_TABLE: Final = "tests/wire/test_attributes.py::test_one_wrong_blob_in_a_table_is_named"
_JOINED: Final = "tests/wire/test_gathering.py::"
_ADDS_UP: Final = _STORIES + "test_a_run_that_does_not_add_up_is_refused"

ROWS: Final = (
    Row(
        "own-fields-passed-on-with-the-run",
        _WIRE + "codec.py",
        "decode_run(run_values, bytes(header[end:]), payload)",
        "decode_run(run_values, bytes(header), payload)",
        _PASSED_ON,
    ),
    Row(
        "part-passed-on-with-the-header-of-all",
        "brokerd/model/publication.py",
        "            return PublicationRun(self.source, sequences, table, index, lengths, payload)\n",
        "            chosen = PublicationRun(self.source, sequences, table, index, lengths, payload)\n"
        '            object.__setattr__(chosen, "header", self.header)\n            return chosen\n',
        _PASSED_ON,
    ),
    Row(
        "items-behind-the-fields-ignored",
        _WIRE + "codec.py",
        '        for _ in items:\n            raise Misfit(f"{self.name} of {len(values)} items, too many")\n',
        "",
        _STORIES + "test_what_is_no_message_is_refused_with_a_reason",
        {"values": [19, 1, 2, 3], "why": "too many"},
    ),
    Row(
        "payload-behind-the-run-ignored",
        _WIRE + "runs.py",
        "    if size != len(payload):",
        "    if size > len(payload):",
        _ADDS_UP,
        {"place": 6, "value": 0, "why": "payloads"},
    ),
    Row(
        "run-that-stands-still",
        _WIRE + "runs.py",
        "min(steps) < 1 or",
        "min(steps) < 0 or",
        _ADDS_UP,
        {"place": 5, "value": [0, 5], "why": "steps"},
    ),
    Row(
        "joined-without-what-follows",
        _WIRE + "gathering.py",
        "[self._joining.join(self._messages), *self._following]",
        "[self._joining.join(self._messages)]",
        _JOINED + "test_what_may_follow_does_not_part_publications_that_are_joined",
    ),
    Row(
        "anything-may-follow",
        _WIRE + "gathering.py",
        "if KINDS[type(message)].may_follow:",
        "if KINDS[type(message)].joining is None:",
        _JOINED + "test_what_may_follow_does_not_move_past_what_is_not_joined",
    ),
    Row(
        "boolean-is-a-number",
        _WIRE + "misfit.py",
        "    for value in values:\n        if type(value) is not int or",
        "    for value in values:\n        if not isinstance(value, int) or",
        _ADDS_UP,
        {"place": 3, "value": True, "why": "integers"},
    ),
    Row(
        "long-text-in-a-table-of-attributes",
        _WIRE + "attributes.py",
        "longest > MAXIMUM_STRING_BYTES or ",
        "",
        _IN_A_TABLE,
        {"value": {"a": "x" * 257}},
    ),
    Row(
        "no-number-in-a-table-of-attributes",
        _WIRE + "attributes.py",
        "total != total or ",
        "",
        _IN_A_TABLE,
        {"value": {"a": float("nan")}},
    ),
    Row(
        "no-map-in-a-table-of-attributes",
        _WIRE + "attributes.py",
        "{*map(type, tables)} == {dict}",
        "tables[0] == tables[0]",
        _IN_A_TABLE,
        {"value": "text"},
    ),
)
