"""Mistakes in what is on disk: torn ends, the order of syncs, what is chopped and when."""

import errno
from typing import Final

from tests.helpers.planted_stories import Row
from tests.storage import test_crashes as crashes
from tests.storage.test_meta_store import index_lost, on_disk

_VOLUME: Final = "brokerd/storage/log_volume.py"
_GROUPS: Final = "brokerd/storage/log_groups.py"
_META: Final = "brokerd/storage/meta_store.py"

_CRASHES: Final = "tests/storage/test_crashes.py::crash_everywhere"
_BITS: Final = "tests/storage/test_crashes.py::change_bits"
_STORES: Final = "brokerd/runtime/stores.py"


def _few(longest: int, *operations: crashes.Operation) -> dict[str, object]:
    return {"operations": operations, "longest": longest}


ROWS: Final = (
    Row(
        "folder-of-logs-without-its-name",
        _VOLUME,
        "        files.sync_folder(folder.parent)\n",
        "",
        _CRASHES,
        _few(1, crashes.one),
    ),
    Row(
        "segments-go-together",
        _VOLUME,
        "            self._has_unsynced_removal = True\n            self._sync_removal()\n",
        "            del self._segments[number]\n",
        _CRASHES,
        _few(3, crashes.three_in_two_logs, crashes.chop),
    ),
    Row(
        "segment-without-a-beginning-stays",
        _VOLUME,
        "        self._files.remove(path)\n        self._files.sync_folder(self._folder)\n",
        "        pass\n",
        _CRASHES,
        _few(1, crashes.one),
    ),
    Row(
        "durable-before-all-is-written",
        _VOLUME,
        "            left = left[self._files.append(file, left) :]\n",
        "            left = left[self._files.append(file, left) :]\n            self._files.sync(file)\n            break\n",
        _CRASHES,
        _few(1, crashes.over_sectors),
    ),
    Row(
        "group-without-its-checksum",
        _GROUPS,
        "if len(body) == size and zlib.crc32(body) == checksum else None",
        "if len(body) == size else None",
        _BITS,
        {"step": 37},
    ),
    Row(
        "changed-bit-is-a-torn-end",
        _VOLUME,
        "        if is_one_bit_off(data, position, salt):\n",
        "        if not salt:\n",
        _BITS,
        {"step": 37},
    ),
    Row(
        "durable-end-is-a-torn-end",
        _VOLUME,
        "        if durable >= self._group:\n",
        "        if not path:\n",
        "tests/storage/test_crashes.py::test_damage_of_a_group_that_was_durable_is_no_torn_end",
        {"record_property": print},
    ),
    Row(
        "marked-before-it-is-durable",
        _VOLUME,
        "            self._sync()\n            self._mark.write(self._segments[self._segment].salt, self._group)\n",
        "            self._mark.write(self._segments[self._segment].salt, self._group)\n            self._sync()\n",
        _CRASHES,
        _few(1, crashes.one),
    ),
    Row(
        "another-volumes-mark-counts",
        "brokerd/storage/synced_mark.py",
        "return number if marked == salt else 0",
        "return number",
        "tests/storage/test_crashes.py::test_a_mark_that_is_damaged_or_of_another_volume_says_nothing",
    ),
    Row(
        "durable-without-the-disk",
        _VOLUME,
        "            self._sync()\n",
        "            pass\n",
        "tests/storage/test_log_volume.py::test_what_a_write_called_durable_survives_a_power_failure",
    ),
    Row(
        "new-segment-not-synced",
        _VOLUME,
        "                self._files.sync(file)  # before",
        "                pass  # before",
        "tests/storage/test_what_a_log_lets_go.py::test_a_segment_begins_on_the_disk_before_anything_is_behind_its_beginning",
    ),
    Row(
        "M45-new-segment-without-its-name",
        _VOLUME,
        "            self._files.sync_folder(self._folder)\n        except OSError:\n",
        "            pass\n        except OSError:\n",
        "tests/storage/test_log_volume.py::test_what_a_write_called_durable_survives_a_power_failure",
    ),
    Row(
        "current-segment-goes-too",
        _VOLUME,
        "for number in list(self._segments)[:-1]:",
        "for number in list(self._segments):",
        "tests/storage/test_what_a_log_lets_go.py::test_the_segment_that_is_written_to_stays_when_everything_is_chopped",
    ),
    Row(
        "segments-go-out-of-order",
        _VOLUME,
        "            if any(last >= self._logs[name].first for name, last in highest.items()):\n                break\n",
        "            if any(last >= self._logs[name].first for name, last in highest.items()):\n                continue\n",
        "tests/storage/test_what_a_log_lets_go.py::test_a_segment_stays_while_one_before_it_does",
    ),
    Row(
        "segment-goes-when-one-log-is-done",
        _VOLUME,
        "if any(last >= self._logs[name].first for name, last in highest.items()):",
        "if all(last >= self._logs[name].first for name, last in highest.items()):",
        "tests/storage/test_log_volume.py::test_a_slow_log_keeps_the_segments_that_it_shares",
    ),
    Row(
        "truncated-keeps-its-segment",
        _VOLUME,
        "                    self._lower_highest(name, index - 1)\n",
        "",
        "tests/storage/test_what_a_log_lets_go.py::test_a_record_that_is_written_again_after_a_truncation_keeps_its_segment",
    ),
    Row(
        "truncated-comes-back",
        _VOLUME,
        "                    and not log.is_stale(group.number, entry.index)\n",
        "",
        "tests/storage/test_log_volume.py::test_what_is_truncated_is_gone_and_its_indices_are_given_again",
    ),
    Row(
        "first-segments-ends-only",
        _VOLUME,
        "        if self._size == SEGMENT.size:\n",
        "        if self._size == SEGMENT.size and self._group == 1:\n",
        "tests/storage/test_log_volume.py::test_indices_go_on_when_everything_else_of_a_log_is_gone",
    ),
    Row(
        "any-segment-may-be-torn",
        _VOLUME,
        "if not is_last or has_later_group(data, position, salt, self._group):",
        "if has_later_group(data, position, salt, self._group):",
        "tests/storage/test_log_volume.py::test_a_segment_that_is_not_the_last_may_have_no_torn_end",
    ),
    Row(
        "M43-damage-is-a-torn-end",
        _VOLUME,
        "if not is_last or has_later_group(data, position, salt, self._group):",
        "if not is_last:",
        "tests/storage/test_log_volume.py::test_damage_before_a_whole_group_is_no_torn_end",
    ),
    Row(
        "torn-end-stays",
        _VOLUME,
        "            self._files.cut(file, position)\n",
        "            pass\n",
        "tests/storage/test_what_a_log_lets_go.py::test_after_a_torn_end_the_log_goes_on_through_another_crash",
    ),
    Row(
        "torn-end-cut-off-for-now",
        _VOLUME,
        "            self._files.cut(file, position)\n            self._files.sync(file)\n",
        "            self._files.cut(file, position)\n",
        "tests/storage/test_what_a_log_lets_go.py::test_after_a_torn_end_the_log_goes_on_through_another_crash",
    ),
    Row(
        "half-a-group-stays-on-a-full-disk",
        _VOLUME,
        "                self._files.cut(self._file, self._size)\n",
        "                pass\n",
        "tests/storage/test_what_a_log_lets_go.py::test_a_group_that_found_no_room_leaves_nothing_and_is_written_later",
    ),
    Row(
        "M44-failed-sync-may-be-tried-again",
        _VOLUME,
        'raise OSError(errno.EIO, f"{self._folder}: {error}") from error',
        "raise",
        "tests/storage/test_log_volume.py::test_a_write_that_cannot_be_made_durable_is_no_mere_lack_of_room",
        {"number": errno.ENOSPC},
    ),
    Row(
        "size-forgets-the-group",
        _VOLUME,
        "        self._size += len(group)\n",
        "",
        "tests/storage/test_log_volume.py::test_segments_go_when_everything_in_them_is_chopped",
    ),
    Row(
        "another-deployments-rows-stay",
        _META,
        '                if not recovering:\n                    connection.execute("DELETE FROM rows")\n',
        "                if not recovering:\n                    pass\n",
        "tests/storage/test_meta_store.py::test_another_deployment_starts_with_nothing_but_never_repeats_an_incarnation",
        {"kept": on_disk},
    ),
    Row(
        "commits-not-synchronous",
        _META,
        "'FULL' if fsync else 'OFF'",
        "'NORMAL' if fsync else 'OFF'",
        "tests/storage/test_meta_store.py::test_commits_are_synchronous",
    ),
    Row(
        "commits-not-synced-at-all",
        _META,
        "'FULL' if fsync else 'OFF'",
        "'OFF' if fsync else 'OFF'",
        "tests/storage/test_sqlite_crashes.py::crash_everywhere",
        {"of_a_moment": 2},
    ),
    Row(
        "failed-transaction-stays-open",
        _META,
        '        elif self._connection.in_transaction:\n            self._connection.execute("ROLLBACK")\n',
        "",
        "tests/storage/test_meta_store.py::test_a_refused_store_holds_nothing_up_and_says_the_same_again",
    ),
    Row(
        "incarnation-in-memory-only",
        _META,
        '                        ("incarnation", str(incarnation)),\n',
        "",
        "tests/storage/test_meta_store.py::test_another_deployment_starts_with_nothing_but_never_repeats_an_incarnation",
        {"kept": on_disk},
    ),
    Row(
        "damage-not-looked-for",
        _META,
        '        if verdict != "ok":',
        "        if not verdict:",
        "tests/storage/test_meta_store.py::test_a_damaged_or_foreign_store_is_refused",
        {"damage": index_lost},
    ),
)
