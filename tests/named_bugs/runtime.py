"""Mistakes in the runtime: a lack of descriptors or of room that ends more than one sample."""

from typing import Final

from tests.helpers.planted_stories import Row

_EVENTS: Final = "brokerd/runtime/event_log.py"
_EVENT_STORIES: Final = "tests/runtime/test_event_log.py::"
_ACCEPTING: Final = "brokerd/runtime/accepting.py"
_CONTROL: Final = "brokerd/runtime/control.py"

ROWS: Final = (
    Row(
        "sample-that-cannot-be-taken-raises",
        "brokerd/runtime/memory.py",
        "            return int(statm.read().split()[1]) * _PAGE_BYTES\n    except OSError:\n",
        "            return int(statm.read().split()[1]) * _PAGE_BYTES\n    except ValueError:\n",
        "tests/runtime/test_memory.py::test_memory_that_cannot_be_read_is_none_and_read_again_later",
    ),
    Row(
        "full-disk-under-the-events-raises",
        _EVENTS,
        "        except OSError:\n            self._lines_left_out += 1\n",
        "        except ValueError:\n            self._lines_left_out += 1\n",
        _EVENT_STORIES + "test_a_line_without_room_is_left_out_and_counted",
    ),
    Row(
        "lines-left-out-in-silence",
        _EVENTS,
        "        if self._lines_left_out:\n",
        "        if self._lines_left_out < 0:\n",
        _EVENT_STORIES + "test_a_line_without_room_is_left_out_and_counted",
    ),
    Row(
        "part-of-a-line-stays",
        "brokerd/history/writer.py",
        "            os.ftruncate(self._descriptor, size_bytes - written_bytes)\n",
        "",
        _EVENT_STORIES + "test_no_part_of_a_line_that_was_cut_short_stays_in_the_file",
    ),
    Row(
        "failed-run-keeps-its-files",
        _EVENTS,
        "        events.close()\n        raise\n",
        "        raise\n",
        _EVENT_STORIES + "test_a_run_that_cannot_begin_leaves_no_file_open",
    ),
    Row(
        "no-descriptor-is-a-broken-disk",
        "brokerd/storage/room.py",
        "    return is_no_room(error) or is_out_of_descriptors(error)\n",
        "    return is_no_room(error)\n",
        "tests/runtime/test_durable.py::test_a_file_is_opened_once_a_descriptor_is_free",
        {"number": 24},
    ),
    Row(
        "group-written-twice-without-descriptor",
        "brokerd/storage/log_volume.py",
        "            if not is_out_of_descriptors(error):\n                raise\n\n    def _remove",
        "            raise\n\n    def _remove",
        "tests/storage/test_log_volume.py::test_a_group_is_written_once_although_a_segment_cannot_go_without_a_descriptor",
    ),
    Row(
        "connection-that-failed-ends-the-listener",
        _ACCEPTING,
        "            if error.errno in _OF_LISTENER:\n",
        "            if error.errno != errno.EMFILE:\n",
        "tests/runtime/test_links.py::test_a_failed_accept_ends_nothing_and_the_next_connection_is_served",
        {"number": 103},
    ),
    Row(
        "every-failed-accept-is-a-line",
        _ACCEPTING,
        "            is_reported = True\n",
        "",
        "tests/runtime/test_links.py::test_a_failed_accept_ends_nothing_and_the_next_connection_is_served",
        {"number": 24},
    ),
    Row(
        "silent-connections-keep-their-place",
        _CONTROL,
        "            if not connection.has_requested:\n",
        "            if connection.has_requested and connection.unanswered:\n",
        "tests/runtime/test_control.py::test_silent_connections_leave_room_for_a_request",
    ),
    Row(
        "crash-file-for-all-to-read",
        "pubsubctl/commands/app.py",
        "        write_private(path, content)\n    except",
        "        path.parent.mkdir(parents=True, exist_ok=True)\n"
        "        path.write_bytes(content)\n    except",
        "tests/pubsubctl/test_crash_files.py::test_a_crash_file_is_private_in_a_private_folder",
    ),
    Row(
        "client-without-descriptor-raises-oserror",
        _CONTROL,
        '        raise ControlError("closed", f"{path}: not reached ({error.strerror})") from error\n',
        "        raise\n",
        "tests/runtime/test_control.py::test_a_client_without_a_free_descriptor_is_refused_and_may_ask_again",
    ),
)
