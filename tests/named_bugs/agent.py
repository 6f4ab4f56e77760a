"""Mistakes in the agent: what it writes down first, whom it touches, and who heals what is left."""

from typing import Final

from tests.helpers.planted_stories import Row

_FAULTS: Final = "brokerd/agent/faults.py"
_JOURNAL: Final = "brokerd/agent/journal.py"
_WATCHDOG: Final = "brokerd/agent/watchdog.py"
_NFT: Final = "brokerd/agent/nft.py"
_METRICS: Final = "brokerd/agent/metrics.py"
_COLLECTOR: Final = "tests/agent/test_metrics.py::"
_STORIES: Final = "tests/agent/test_fault_keeper.py::"

ROWS: Final = (
    Row(
        "done-before-it-is-on-disk",
        _FAULTS,
        'await self._journal.write(\n                "fault",',
        'await self._journal.note(\n                "fault",',
        _STORIES + "test_a_fault_is_on_the_disk_before_its_broker_is_told",
    ),
    Row(
        "half-applied-stays",
        _FAULTS,
        "                    await self._acts.undo_half(fault, process)\n",
        "",
        _STORIES + "test_what_could_not_be_applied_is_undone_and_has_failed",
    ),
    Row(
        "asked-twice-done-twice",
        _FAULTS,
        "            async with known.changing:\n                return known\n",
        "            async with known.changing:\n                pass\n",
        _STORIES + "test_a_fault_that_is_asked_for_again_is_not_done_again",
    ),
    Row(
        "lease-renewed-here-only",
        _FAULTS,
        "            await self._acts.renew(fault, deadline_ns, lease_ms)\n",
        "",
        _STORIES + "test_a_renewed_lease_is_told_to_who_keeps_it_and_written_down",
    ),
    Row(
        "renewal-forgotten-with-the-agent",
        _FAULTS,
        "            fault.lease_ms, fault.deadline_ns = lease_ms, deadline_ns\n            await self._note(fault)\n",
        "            fault.lease_ms, fault.deadline_ns = lease_ms, deadline_ns\n",
        _STORIES + "test_a_renewed_lease_is_told_to_who_keeps_it_and_written_down",
    ),
    Row(
        "one-death-ends-all-faults",
        _FAULTS,
        "for fault in [fault for fault in self.faults.values() if fault.process == name]:",
        "for fault in [*self.faults.values()]:",
        _STORIES + "test_a_process_that_ends_takes_its_own_faults_with_it_and_no_others",
    ),
    Row(
        "faults-of-an-earlier-boot-live-on",
        _FAULTS,
        "if left.boot != boot_id() or (has_ended and fault.dies_with_process):",
        "if has_ended and fault.dies_with_process:",
        _STORIES + "test_the_next_agent_takes_over_what_this_boot_left",
        {"is_same_boot": False},
    ),
    Row(
        "written-is-not-on-disk",
        _JOURNAL,
        "                os.fdatasync(self._file)\n",
        "                pass\n",
        "tests/agent/test_journal.py::test_an_entry_survives_a_power_failure_once_it_is_written",
    ),
    Row(
        "journal-without-its-name",
        _JOURNAL,
        "        _sync_folder(path.parent)  # a file",
        "        pass  # a file",
        "tests/agent/test_journal.py::test_an_entry_survives_a_power_failure_once_it_is_written",
    ),
    Row(
        "half-a-line-spoils-the-next",
        _JOURNAL,
        "        os.truncate(path, end)\n",
        "        pass\n",
        _STORIES + "test_the_line_that_a_crash_cut_off_does_not_spoil_the_next",
    ),
    Row(
        "ended-deployment-is-taken-over",
        _JOURNAL,
        "                found = Recollection(deployment=found.deployment, boot=found.boot)\n",
        "                pass\n",
        _STORIES + "test_a_deployment_that_has_ended_leaves_nothing_to_take_over",
    ),
    Row(
        "slows-down-before-that-is-written",
        _WATCHDOG,
        "                if _has_begun(lease_file):\n",
        "                if lease_file.exists():\n",
        _STORIES + "test_a_watchdog_lets_a_process_run_for_its_share_once_that_has_begun",
        {"has_begun": False, "seen": {False}},
    ),
    Row(
        "slows-nothing-down",
        _WATCHDOG,
        "signal.pidfd_send_signal(descriptor, signal.SIGSTOP)",
        "signal.pidfd_send_signal(descriptor, signal.SIGCONT)",
        _STORIES + "test_a_watchdog_lets_a_process_run_for_its_share_once_that_has_begun",
        {"has_begun": True, "seen": {True, False}},
    ),
    Row(
        "any-boot-will-do",
        _WATCHDOG,
        '    if found.get("boot_id") != boot_id():\n        return None\n',
        "",
        _STORIES + "test_a_process_of_an_earlier_boot_is_nobody",
    ),
    Row(
        "one-way-is-both-ways",
        _NFT,
        "                if self.direction in directions:\n",
        "                if directions:\n",
        _STORIES + "test_one_way_is_one_way_in_the_rules",
        {"direction": "in", "chains": {"incoming"}},
    ),
    Row(
        "ssh-by-one-side-only",
        _NFT,
        '            for side in ("sport", "dport"):\n',
        '            for side in ("sport",):\n',
        _STORIES + "test_one_way_is_one_way_in_the_rules",
        {"direction": "in", "chains": {"incoming"}},
    ),
    Row(
        "tables-of-two-agents-alike",
        _NFT,
        'f"{root}\\0{fault_id}".encode()',
        'f"{fault_id}".encode()',
        _STORIES + "test_agents_of_two_roots_have_tables_of_their_own",
    ),
    Row(
        "silent-connections-starve-the-collector",
        _METRICS,
        "            oldest.cancel()\n",
        "            pass\n",
        _COLLECTOR
        + "test_silent_connections_neither_starve_the_collector_nor_take_all_descriptors",
    ),
    Row(
        "each-byte-gives-more-time",
        _METRICS,
        "        scope = trio.CancelScope(deadline=trio.current_time() + REQUEST_S)\n",
        "        scope = trio.CancelScope()\n",
        _COLLECTOR + "test_a_connection_has_its_time_from_its_acceptance",
    ),
    Row(
        "collector-takes-the-last-descriptors",
        _METRICS,
        "descriptors - RESERVED_DESCRIPTORS",
        "descriptors",
        _COLLECTOR + "test_the_last_descriptors_are_kept_for_the_agent",
    ),
    Row(
        "sample-without-descriptor-fails-status",
        "brokerd/agent/processes.py",
        "        if not is_out_of_descriptors(error):\n            raise\n        return None\n",
        "        raise\n",
        "tests/agent/test_processes.py::test_a_sample_without_a_free_descriptor_is_left_out",
    ),
    Row(
        "dead-without-a-descriptor",
        "brokerd/agent/processes.py",
        "            return self._has_pid()  # as",
        "            return False  # as",
        "tests/agent/test_processes.py::test_a_process_is_not_dead_because_no_descriptor_is_free",
    ),
    Row(
        "requests-queue-without-bound",
        _METRICS,
        "self._requests >= PENDING_REQUESTS",
        "self._requests < 0",
        _COLLECTOR + "test_requests_beyond_those_pending_are_refused_at_once",
    ),
    Row(
        "fault-ends-the-agent-that-ends-it",
        _FAULTS,
        "            except (ControlError, OSError) as error:\n",
        "            except ControlError as error:\n",
        _STORIES + "test_a_fault_is_ended_once_a_descriptor_is_free",
    ),
)
