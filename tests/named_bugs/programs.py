"""Mistakes about programs: whose agents are operated, and which brokers are replaced how."""

from typing import Final

from tests.helpers.planted_stories import Row

_PROGRAMS: Final = "pubsubctl/deploying/programs.py"
_STORIES: Final = "tests/pubsubctl/test_programs.py::"

ROWS: Final = (
    Row(
        "without-a-version-is-the-same",
        _PROGRAMS,
        "    if program is None or program.commands_version < own.commands_version:\n",
        "    if program is not None and program.commands_version < own.commands_version:\n",
        _STORIES + "test_each_agent_that_cannot_be_operated_is_named_with_what_helps",
    ),
    Row(
        "the-future-is-operated",
        _PROGRAMS,
        "    if program.commands_version > own.commands_version:\n",
        "    if program.commands_version < 0:\n",
        _STORIES + "test_each_agent_that_cannot_be_operated_is_named_with_what_helps",
    ),
    Row(
        "the-future-is-upgraded",
        _PROGRAMS,
        "    refused = [Age.LATER] if is_upgrade else [Age.EARLIER, Age.LATER]\n",
        "    refused = [] if is_upgrade else [Age.EARLIER, Age.LATER]\n",
        _STORIES + "test_an_upgrade_takes_earlier_agents_and_no_later_ones",
    ),
    Row(
        "upgrade-needs-no-upgrade",
        _PROGRAMS,
        "    refused = [Age.LATER] if is_upgrade else [Age.EARLIER, Age.LATER]\n",
        "    refused = [Age.EARLIER, Age.LATER]\n",
        _STORIES + "test_an_upgrade_takes_earlier_agents_and_no_later_ones",
    ),
    Row(
        "two-wire-versions-at-a-time",
        _PROGRAMS,
        "    if found and not at_once:\n",
        "    if found and at_once is None:\n",
        _STORIES + "test_brokers_of_two_wire_versions_are_not_replaced_one_after_the_other",
    ),
    Row(
        "any-report-is-a-program",
        "brokerd/runtime/program.py",
        "        if type(wire) is not int or type(commands) is not int:\n            return None\n",
        "        if wire is None or commands is None:\n            return None\n",
        _STORIES + "test_a_report_that_is_none_is_of_a_release_without_versions",
        {"reported": {"release": "1", "digest": "", "wire_version": "27", "commands_version": 1}},
    ),
    Row(
        "refused-greeting-is-an-error",
        "brokerd/agent/client.py",
        '            if error.kind != "user":\n                raise\n            return None\n',
        "            raise\n",
        _STORIES + "test_an_agent_that_takes_no_greeting_is_of_a_release_without_versions",
    ),
    Row(
        "pseudonyms-by-a-list-of-fields",
        "pubsubctl/running/packing.py",
        "            renames |= pseudonyms_of_words(found, renames, structure)\n",
        "",
        "tests/pubsubctl/test_packing.py::test_no_word_of_any_string_of_an_inventory_is_left",
    ),
    Row(
        "pseudonyms-of-whole-strings-only",
        "pubsubctl/running/pseudonyms.py",
        "for word in _WORD.findall(each):",
        "for word in ():",
        "tests/pubsubctl/test_packing.py::test_no_word_of_any_string_of_an_inventory_is_left",
    ),
)
