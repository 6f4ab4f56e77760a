"""Mistakes in the client library: what it keeps, repeats, gives on and acknowledges."""

from typing import Final

from tests.helpers.planted_stories import Row

_CORE: Final = "brokerd/client/core.py"
_PROGRESS: Final = "brokerd/client/progress.py"
_TOKENS: Final = "brokerd/client/tokens.py"
_TRANSACTIONS: Final = "brokerd/client/transactions.py"
_WINDOW: Final = "brokerd/client/window.py"

_MOVES: Final = "tests/client/test_failover.py::test_"
_TOGETHER: Final = "tests/client/test_transactions.py::test_"

ROWS: Final = (
    Row(
        "resumes-by-what-came",
        _PROGRESS,
        "for (number, stream), last in self._taken.items():",
        "for (number, stream), last in self._received.items():",
        "tests/client/test_core.py::test_what_was_delivered_before_an_interruption_is_not_acknowledged_after_it",
    ),
    Row(
        "taken-on-arrival",
        _PROGRESS,
        "        else:\n            self._take_if_first()\n",
        "        self._take_if_first()\n",
        "tests/client/test_core.py::test_a_repetition_is_acknowledged_only_after_what_came_before_it",
    ),
    Row(
        "acknowledges-an-earlier-session",
        _PROGRESS,
        "if entry.session != self._session:",
        "if not self._session:",
        "tests/client/test_core.py::test_what_was_delivered_before_an_interruption_is_not_acknowledged_after_it",
    ),
    Row(
        "nothing-sent-again",
        _CORE,
        "for run in in_good_sizes(self._window.runs()):",
        "for run in in_good_sizes(self._unsent):",
        "tests/client/test_core.py::test_what_is_published_before_the_first_attach_goes_out_with_it",
    ),
    Row(
        "last-run-of-an-acknowledgement-kept",
        _WINDOW,
        "            end += 1\n",
        "            pass\n",
        "tests/client/test_core.py::test_a_publication_is_done_once_however_often_it_is_acknowledged",
    ),
    Row(
        "window-counts-whole-runs-down",
        _WINDOW,
        "self.publications -= len(inside)",
        "self.publications -= len(run)",
        "tests/client/test_core.py::test_a_publication_is_done_once_however_often_it_is_acknowledged",
    ),
    Row(
        "duplicates-by-the-furthest-subscription",
        _PROGRESS,
        "        if max(seen) < first:",
        "        if min(seen) < first:",
        "tests/client/test_repetitions.py::test_where_one_subscription_is_further_than_another_each_gets_what_it_lacks",
    ),
    Row(
        "received-goes-back",
        _PROGRESS,
        "received[number, stream] = max(upto, last)",
        "received[number, stream] = last",
        "tests/client/test_repetitions.py::test_a_repetition_of_the_beginning_brings_nothing_again_that_follows_it",
    ),
    Row(
        "same-incarnation-elsewhere",
        _CORE,
        "            self.incarnation = max(self.incarnation, self._commits.generation) + 1\n",
        "",
        "tests/client/test_failover.py::test_what_was_published_here_is_done_before_its_publisher_leaves",
    ),
    Row(
        "leaves-what-is-under-way",
        _CORE,
        "return not (is_busy or would_miss or self.outstanding)",
        "return not (is_busy or would_miss)",
        "tests/client/test_failover.py::test_another_broker_in_place_of_the_one_with_the_rest_is_refused",
    ),
    Row(
        "said-before-saved",
        _CORE,
        "while self._unsaid and self._unsaid[0][0] <= self._revision.saved:",
        "while self._unsaid:",
        "tests/client/test_core.py::test_what_goes_out_waits_until_what_it_rests_on_is_saved",
    ),
    Row(
        "ended-subscription-still-gives",
        _PROGRESS,
        "wanted = tuple([number for number in numbers if number in self._wanted])",
        "wanted = numbers",
        "tests/client/test_repetitions.py::test_an_ended_subscription_is_given_nothing_that_still_comes",
    ),
    Row(
        "one-commit-for-all-subscriptions",
        _PROGRESS,
        "            if entry.stream in waiting or any(\n",
        "            if entry.stream in waiting or all(\n",
        "tests/client/test_core.py::test_what_two_subscriptions_were_given_is_acknowledged_when_both_have_committed",
    ),
    Row(
        "released-past-what-waits",
        _PROGRESS,
        "            if entry.stream in waiting or any(\n",
        "            if any(\n",
        "tests/client/test_core.py::test_what_two_subscriptions_were_given_is_acknowledged_when_both_have_committed",
    ),
    Row(
        "restart-forgets-what-is-ending",
        _CORE,
        "core._ending = dict.fromkeys(state.ending)",
        "core._ending = {}",
        "tests/client/test_ending_again.py::test_a_restarted_client_asks_again_for_the_end_of_its_subscription",
    ),
    Row(
        "acknowledgement-spans-a-gap-of-order",
        _PROGRESS,
        "if ranges and ranges[-1][1] < entry.first:",
        "if ranges:",
        "tests/client/test_core.py::test_a_repetition_is_acknowledged_only_after_what_came_before_it",
    ),
    Row(
        "origin-taken-for-a-place",
        _PROGRESS,
        "place = self._place_of(number, source, last) if is_placed else (source, last)",
        "place = (source, last)",
        "tests/client/test_progress.py::test_what_is_committed_by_origin_is_acknowledged_by_place_with_all_before_it",
    ),
    Row(
        "gap-told-again",
        _PROGRESS,
        "if before < message.last",
        "if True",
        "tests/client/test_progress.py::test_a_gap_in_a_source_is_told_from_what_was_not_had",
    ),
    Row(
        "gap-of-what-was-had",
        _PROGRESS,
        "yield source, max(first, had + 1), last",
        "yield source, first, last",
        "tests/client/test_progress.py::test_a_gap_is_told_by_origins_from_what_had_not_come_before_it",
    ),
    Row(
        "silence-acknowledged-ahead",
        _PROGRESS,
        "        elif len(self._untaken) == 1:",
        "        elif self._untaken:",
        "tests/client/test_progress.py::test_silence_moves_the_place_and_the_application_does_not_hear_of_it",
    ),
    Row(
        "waits-ever-longer",
        "brokerd/client/brokers.py",
        "min(2 * pause_s, RECONNECT_LIMIT_S)",
        "2 * pause_s",
        "tests/client/test_brokers.py::test_brokers_are_tried_in_order_with_one_pause_per_round",
    ),
    Row(
        "renamed-before-it-is-on-disk",
        "brokerd/client/store.py",
        "            os.fsync(file)\n",
        "",
        "tests/client/test_store.py::test_a_disk_that_fails_once_is_not_trusted_again",
        {"call": "fsync of the folder"},
    ),
    Row(
        "kept-without-its-folder",
        "brokerd/client/store.py",
        "            os.fsync(folder)\n",
        "            pass\n",
        "tests/client/test_store_crashes.py::crash_everywhere",
    ),
    Row(
        "kept-before-it-is-on-disk",
        "brokerd/client/store.py",
        "            os.fsync(file)\n",
        "            pass\n",
        "tests/client/test_store_crashes.py::crash_everywhere",
    ),
    Row(
        "trusts-a-disk-that-failed",
        "brokerd/client/store.py",
        "            self._failure = str(error)\n",
        "",
        "tests/client/test_store.py::test_a_disk_that_fails_once_is_not_trusted_again",
        {"call": "fsync"},
    ),
    Row(
        "checksum-not-looked-at",
        "brokerd/client/kept.py",
        "    if _checksum(body) != checksum:",
        "    if not checksum:",
        "tests/client/test_store.py::test_what_is_kept_and_damaged_or_cut_off_is_refused_wherever_that_is",
    ),
    Row(
        "joined-runs-of-the-window-in-place-of-their-neighbours",
        _WINDOW,
        "self._runs[start:end] = fewer",
        "self._runs[start : end + 1] = fewer",
        "tests/client/test_window.py::test_what_is_kept_is_what_was_added_and_is_not_done",
    ),
    Row(
        "joined-runs-stay-where-they-were",
        _WINDOW,
        "            self._joined = start + len(kept) + max(0, self._joined - end)\n",
        "            self._joined = len(self._runs)\n",
        "tests/client/test_window.py::test_what_is_published_one_by_one_and_not_done_is_kept_in_half_as_much_again",
    ),
    Row(
        "change-committed-before-its-token",
        _TOKENS,
        "        changed = database.execute(",
        '        database.execute("COMMIT")\n        changed = database.execute(',
        f"{_TOGETHER}a_token_and_the_change_it_stands_for_are_seen_together_or_not_at_all",
    ),
    Row(
        "token-committed-without-the-change",
        _TOKENS,
        'database.execute(f"RELEASE {_SAVEPOINT}")',
        'database.execute(f"ROLLBACK TO {_SAVEPOINT}")',
        f"{_TOGETHER}each_event_is_in_the_database_once_across_restarts",
    ),
    Row(
        "acknowledged-before-the-commit",
        _TRANSACTIONS,
        "            self._tokens.commit(transaction.token)\n",
        "            self._line.core.commit_through(transaction.serial)\n"
        "            self._line.acknowledge()\n"
        "            self._tokens.commit(transaction.token)\n",
        f"{_TOGETHER}a_file_that_is_busy_commits_nothing_and_nothing_is_acknowledged",
    ),
    Row(
        "consumed-when-it-is-received",
        _TRANSACTIONS,
        "        self._line.read_on()\n        return received\n",
        "        self._line.core.commit_through(self.serial)\n        return received\n",
        f"{_TOGETHER}what_a_block_took_that_failed_is_taken_again_and_was_not_acknowledged",
    ),
    Row(
        "moves-beside-itself",
        "brokerd/client/client.py",
        "if old.core.leaves_freely:",
        "if old.core.is_detaching:",
        f"{_MOVES}where_brokers_keep_nothing_who_moves_leaves_first_and_is_who_it_was",
    ),
    Row(
        "given-up-move-stays-away",
        "brokerd/client/client.py",
        "                await line.go_to(before)\n",
        "                await line.leave()\n",
        f"{_MOVES}who_gives_up_a_move_to_where_nobody_is_comes_back",
    ),
    Row(
        "failed-block-keeps-what-it-took",
        _TRANSACTIONS,
        "        self._inbox.put_back(self._line, transaction.taken)\n",
        "",
        f"{_TOGETHER}what_a_block_took_that_failed_is_taken_again_and_was_not_acknowledged",
    ),
    Row(
        "failed-block-gives-back-in-reverse",
        "brokerd/client/inbox.py",
        "for event in reversed(events))",
        "for event in events)",
        f"{_TOGETHER}what_a_block_took_that_failed_is_taken_again_and_was_not_acknowledged",
    ),
    Row(
        "failed-block-stays-in-the-file",
        _TRANSACTIONS,
        "        self._tokens.roll_back()\n        self._inbox",
        "        self._inbox",
        f"{_TOGETHER}what_a_block_took_that_failed_is_taken_again_and_was_not_acknowledged",
    ),
    Row(
        "silence-acknowledged-before-a-commit",
        _PROGRESS,
        "        if self.in_transactions:\n            self._release()\n        elif len",
        "        if len",
        f"{_TOGETHER}silence_ends_a_wait_so_that_the_token_moves_on",
    ),
    Row(
        "older-process-commits",
        _TOKENS,
        "WHERE client = ? AND generation = ?",
        "WHERE client = ? AND ? > 0",
        f"{_TOGETHER}of_two_processes_the_one_that_took_over_last_commits",
    ),
    Row(
        "takes-over-without-a-new-generation",
        _TOKENS,
        "SET generation = generation + 1",
        "SET generation = generation",
        f"{_TOGETHER}of_two_processes_the_one_that_took_over_last_commits",
    ),
    Row(
        "token-covers-what-waits",
        _PROGRESS,
        "            if entry.serial > serial:\n                break\n"
        "            if number in entry.subscriptions:\n                reached[",
        "            if number in entry.subscriptions:\n                reached[",
        f"{_TOGETHER}a_block_that_takes_a_part_commits_that_part",
    ),
)
