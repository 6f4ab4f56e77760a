"""Lies about clocks, and folders that pretend to be of an older schema."""

from typing import Any

from tests.helpers.false_witnesses.lies import (
    PUBLISHERS,
    SUBSCRIBERS,
    Change,
    add_lie,
    clocks,
    events_of,
    journal_change,
    of_manifest,
    register_lie,
)
from tests.helpers.forged_folders import RunFolder

add_lie("hosts_of_one_address_have_two_clocks", clocks(err_ns=500_000), "spec/placement.json")

add_lie("a_clock_is_less_certain_than_its_trips", clocks(err_ns=10**12), "err_ns of")

add_lie(
    "a_trip_took_longer_than_the_run",
    clocks(err_ns=10**12, rtt_min_ns=2 * 10**12),
    "rtt_min_ns of",
)


@register_lie("older schema")
def the_brokers_are_of_an_older_schema(run: RunFolder) -> None:
    with run.lines(events_of(run, "c1")) as rows:
        for row in rows:
            row.pop("schema", None)


def _strip_witnesses(run: RunFolder) -> None:
    """Convert to a folder of version 1: without the journal's copy and any newer schema."""

    def older(manifest: dict[str, Any]) -> None:
        manifest["schema"] = "pubsubctl/manifest/1"
        for name in ("specification_digest", "promises"):
            manifest.pop(name)

    journal_change(older)(run)
    with run.lines("log.jsonl") as rows:
        del rows[-1]["manifest"]
        rows[:] = [row for row in rows if row["what"] != "specification"]
    with run.document(f"raw/{SUBSCRIBERS}/online.json") as online:
        online["schema"] = "pubsubctl/online/1"


add_lie("the_folder_is_stripped_to_an_older_schema", _strip_witnesses, "disagree on schema")


def _strip_to(version: int) -> Change:
    """Return a change to a folder of an older version, without any newer records."""

    def change(run: RunFolder) -> None:
        with run.lines("log.jsonl") as rows:
            rows[:] = [row for row in rows if row["what"] not in _SINCE_5]
        if version < 4:
            for process in (PUBLISHERS, SUBSCRIBERS):
                run.path(f"raw/{process}/setting.json").unlink()
        for path in sorted(run.folder.glob("raw/*/c?/events.jsonl")):
            with run.lines(path.relative_to(run.folder).as_posix()) as rows:
                if version < 3:
                    rows[:] = [row for row in rows if row["event"] != "fault_counted"]
                for row in rows:
                    row.pop("counters", None)
                    if "schema" in row:
                        row["schema"] = f"pubsubctl/events/{1 + (version > 2)}"
        if version == 1:
            _strip_witnesses(run)
        else:
            of_manifest(schema=f"pubsubctl/manifest/{version}")(run)

    return change


_SINCE_5 = ("closed", "collected", "processors")

for _version, _says in (
    (1, "a second witness of the manifest"),
    (2, "a second witness of what faults absorbed"),
    (3, "a second witness of the settings"),
    (4, "a second witness of the files"),
):
    add_lie(f"the_whole_folder_is_of_version_{_version}", _strip_to(_version), _says)


@register_lie("of schema None, and folders of this schema lack")
def the_folder_has_no_schema(run: RunFolder) -> None:
    _strip_to(1)(run)
    with run.document("manifest.json") as manifest:
        del manifest["schema"]


@register_lie("'pubsubctl/manifest/1', and folders of this schema lack")
def little_but_records_is_left(run: RunFolder) -> None:
    """Remove all files that name processes; only the manifest shows that the run was real."""
    _strip_to(1)(run)
    left = ("*.rec", "*.rec.json", "subscriptions.jsonl")
    for path in sorted(run.folder.glob("raw/*/*/*")):
        if not any(path.match(name) for name in left):
            path.unlink()
    for name in ("spec/cli.json", "spec/placement.json", "spec/inventory.toml", "log.jsonl"):
        run.path(name).unlink()


@register_lie("a second witness of")
def only_records_and_a_specification_are_left(run: RunFolder) -> None:
    """Remove every sign of a process, and every mark of a simulator or a test."""
    little_but_records_is_left(run)
    with run.document("manifest.json") as manifest:
        for name in ("deployment_id", "transport", "roles", "headline"):
            manifest.pop(name, None)


@register_lie("labels.brokers")
def a_run_says_that_it_was_made_up(run: RunFolder) -> None:
    of_manifest(labels={"brokers": "made up"})(run)


@register_lie("labels.brokers")
def an_older_run_says_that_it_was_made_up(run: RunFolder) -> None:
    _strip_to(1)(run)
    with run.document("manifest.json") as manifest:
        manifest["labels"] = {"brokers": "made up"}
