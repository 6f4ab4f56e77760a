"""Mistakes in the proof of lost state: what a mark counts, and which one a neighbour keeps."""

from typing import Final

from tests.helpers.planted_stories import Row

_MARKS: Final = "brokerd/sessions/state_marks.py"
_TABLE: Final = "brokerd/sessions/session.py"
_SERVICE: Final = "brokerd/protocols/parts/clients/service.py"
_STORIES: Final = "tests/sessions/test_state_marks.py::"
_GRYPHON: Final = "brokerd/protocols/gryphon/"
_SIMULATED: Final = (
    "tests/simulator/test_lost_state.py::test_what_a_publishers_broker_lost_is_announced"
)
_TREE: Final = "brokerd/protocols/delta_tree/"
_TREE_STORIES: Final = "tests/protocols/delta_tree/"
_FOLDERS: Final = "tests/runtime/test_state_folder.py::"
_LOSSES: Final = "tests/protocols/parts/test_losses.py::"

ROWS: Final = (
    Row(
        "older-copy-counts-as-a-restart",
        _MARKS,
        "        if commits <= 0 and groups <= 0:\n",
        "        if commits <= 0 or groups <= 0:\n",
        _STORIES + "test_a_folder_with_less_than_a_mark_counts_is_an_older_copy",
        {"commits": 8, "groups": 9},
    ),
    Row(
        "later-incarnation-elsewhere-is-ignored",
        _MARKS,
        "        if mark.incarnation > present.incarnation:\n",
        "        if mark.incarnation > present.incarnation + 1_000:\n",
        _STORIES + "test_a_later_incarnation_has_run_elsewhere",
    ),
    Row(
        "clone-is-taken-for-its-original",
        _MARKS,
        "        if known.start != mark.start:\n",
        "        if known.start[:0] != mark.start[:0]:\n",
        _STORIES + "test_a_clone_of_the_same_incarnation_is_told_apart",
    ),
    Row(
        "invented-mark-ends-a-broker",
        _MARKS,
        "            if self.is_vouched:\n",
        "            if self.is_vouched and not mark.groups:\n",
        _STORIES + "test_an_invented_proof_ends_the_session_only",
    ),
    Row(
        "empty-disk-refuses-its-neighbours",
        _MARKS,
        "            if self.is_vouched:\n",
        "            if mark:\n",
        _STORIES + "test_an_empty_folder_takes_a_mark_of_another_key_for_its_own",
    ),
    Row(
        "accepted-loss-is-proved-again",
        _MARKS,
        "        if mark.lineage < self.lineage:\n",
        "        if mark.lineage < 0:\n",
        _STORIES + "test_marks_of_before_an_accepted_loss_prove_nothing",
    ),
    Row(
        "hello-of-an-older-copy-replaces-the-proof",
        _TABLE,
        '            return Farewell("refused", reason, self.witness.marks[peer])\n',
        '            return Farewell("refused", reason, self.witness.marks[peer])\n'
        "        self.witness.take(peer, hello.state)\n",
        _STORIES + "test_a_dialled_broker_returns_the_mark_that_ends_an_older_copy",
    ),
    Row(
        "refusal-without-its-proof",
        _TABLE,
        '            return Farewell("refused", reason, self.witness.marks[peer])\n',
        '            return Farewell("refused", reason)\n',
        _STORIES
        + "test_a_neighbour_that_comes_with_an_earlier_incarnation_is_refused_with_the_proof",
    ),
    Row(
        "publisher-continues-behind-what-is-lost",
        _SERVICE,
        "if next_sequence > durable + 1 else None",
        "if next_sequence < durable else None",
        _LOSSES + "test_a_publisher_that_proves_a_loss_is_refused_with_the_cause",
    ),
    Row(
        "accepted-loss-is-not-announced",
        _SERVICE,
        "        if message.source is not None and self.lineage:\n            self._announce_lost",
        "        if message.source is not None and not session:\n            self._announce_lost",
        _LOSSES + "test_what_a_publisher_proves_lost_reaches_subscribers_as_a_gap",
    ),
    Row(
        "client-publishes-a-loss-marker",
        _SERVICE,
        "        if has_marker(message.run):\n",
        "        if has_marker(message.run) and not client.connected:\n",
        _LOSSES + "test_no_client_may_publish_a_loss_marker",
    ),
    Row(
        "loss-marker-is-matched-by-its-attributes",
        "brokerd/matching/memo.py",
        "        if MARKER in blobs:\n",
        "        if not blobs:\n",
        _LOSSES + "test_a_loss_marker_matches_every_predicate",
    ),
    Row(
        "missing-segment-is-an-older-end",
        "brokerd/storage/log_volume.py",
        "        return max(0, durable - self.groups) if is_missing else 0\n",
        "        return 0 if is_missing else max(0, durable - self.groups)\n",
        _FOLDERS + "test_a_folder_without_its_last_segment_is_refused",
    ),
    Row(
        "older-log-beside-newer-rows",
        "brokerd/runtime/stores.py",
        "max(self.volume.lost_groups, durable - self.volume.groups)",
        "max(self.volume.lost_groups, durable - durable)",
        _FOLDERS + "test_a_log_that_ends_before_the_last_start_is_refused",
    ),
    Row(
        "loss-is-forgotten-at-the-next-start",
        "brokerd/runtime/state_folder.py",
        "    _sync(folder)\n\n\ndef forget_loss",
        "    (folder / LOSS).unlink()\n\n\ndef forget_loss",
        _FOLDERS + "test_a_recorded_loss_ends_each_start_until_it_is_accepted",
    ),
    Row(
        "loss-is-accepted-where-none-is-known",
        "brokerd/runtime/stores.py",
        "        if not found.cause:\n",
        "        if not found.cause and not config.accept_loss.signature:\n",
        _FOLDERS + "test_a_loss_is_not_accepted_where_none_is_known",
    ),
    Row(
        "client-ends-a-broker-by-a-claim",
        "brokerd/runtime/stores.py",
        "            if found.must_end:\n",
        "            if found.cause:\n",
        _FOLDERS + "test_a_loss_that_only_a_client_proved_ends_no_start_and_may_be_accepted",
    ),
    Row(
        "folder-of-another-protocol-is-read",
        "brokerd/storage/meta_store.py",
        "self._protocol)) != self._protocol:",
        "self._protocol)) is None:",
        _FOLDERS + "test_the_folder_of_another_protocol_is_refused",
    ),
    Row(
        "loss-is-accepted-without-a-signature",
        "brokerd/runtime/stores.py",
        "        elif not act.signature:\n",
        "        elif not act.signature and not act.loss:\n",
        _FOLDERS + "test_an_unsigned_act_is_refused_and_one_without_a_key_too",
    ),
    Row(
        "any-signature-accepts-a-loss",
        "brokerd/runtime/stores.py",
        "elif not authority.has_signed(ACCEPT_LOSS, broker,",
        "elif not act.signature and not authority.has_signed(ACCEPT_LOSS, broker,",
        _FOLDERS + "test_an_act_that_the_authority_has_not_signed_for_this_loss_is_refused",
        {"changes": {"secret": b"x" * 32}, "why": "not of the authority of this deployment"},
    ),
    Row(
        "acceptance-of-one-loss-accepts-the-next",
        "brokerd/runtime/stores.py",
        "        elif act.loss != loss.number:\n",
        "        elif act.loss < 0:\n",
        _FOLDERS + "test_an_act_accepts_one_loss_and_not_the_next_one",
    ),
    Row(
        "folder-of-another-deployment-is-emptied",
        "brokerd/storage/meta_store.py",
        "        if found != deployment_id:\n",
        "        if found == deployment_id + found:\n",
        _FOLDERS + "test_a_folder_that_is_not_the_brokers_own_is_refused_and_stays_as_it_is",
        {"changes": {"deployment_id": "d2"}},
    ),
    Row(
        "logs-without-rows-are-emptied",
        "brokerd/runtime/stores.py",
        "            if not recovering and not self.volume.is_empty:\n",
        "            if recovering and self.volume.is_empty and not self.ends:\n",
        _FOLDERS + "test_logs_without_rows_are_refused_and_stay_as_they_are",
    ),
    Row(
        "incarnation-in-an-answer-leaps",
        _TABLE,
        "        refusal = refusal or self._find_leap(hello)\n",
        "",
        "tests/sessions/test_session.py::test_an_answer_with_an_incarnation_that_leaps_is_refused",
    ),
    Row(
        "incarnation-in-a-hello-leaps",
        _TABLE,
        "        if leap is not None:\n",
        "        if leap is not None and not peer:\n",
        "tests/sessions/test_session.py::"
        "test_an_incarnation_that_leaps_is_refused_and_the_next_one_is_not",
        {"known": 1},
    ),
    Row(
        "detector-incarnation-leaps",
        _TREE + "partitions/partition_table.py",
        "            self._check_leap(peer, partition.detector, partition.incarnation)\n",
        "",
        _TREE_STORIES + "test_partitions.py::test_a_detectors_incarnation_that_leaps_is_refused",
    ),
    Row(
        "tombstone-incarnation-leaps",
        _TREE + "subscriptions/unsubscriptions.py",
        "                check_incarnation(peer, statement.home, known, stated)\n",
        "                check_incarnation(peer, statement.home, known, statement.before)\n",
        _TREE_STORIES + "test_wrong_input.py::test_an_end_in_an_incarnation_that_leaps_is_refused",
    ),
    Row(
        "deleted-folder-takes-writes",
        "brokerd/runtime/state_folder.py",
        "            if _identity(self.path / name) != own:\n",
        "            if _identity(self.path / name) not in (own, (0, 0)):\n",
        _FOLDERS + "test_a_folder_that_is_taken_away_is_noticed",
        {"name": "", "is_replaced": False},
    ),
    Row(
        "streams-go-on-without-a-marker",
        _GRYPHON + "core.py",
        "            self._pubends.publish_loss(event.lineage)\n",
        "            pass\n",
        _SIMULATED,
        {"world": "durable", "is_copy": True},
    ),
    Row(
        "broker-without-streams-publishes-markers",
        _GRYPHON + "core.py",
        "        if event.lineage and self._routes.is_host:",
        "        if event.lineage:",
        "tests/simulator/test_lost_state.py::test_a_broker_without_streams_accepts_a_loss_and_its_neighbours_do_not_refuse_it",
    ),
    Row(
        "tree-announces-nothing-that-its-log-lacks",
        "brokerd/protocols/delta_tree/clients/clients.py",
        "        if self._log is None or not self.lineage:\n",
        "        if self._log is None or self.lineage:\n",
        _SIMULATED,
        {"world": "delta_tree", "is_copy": True},
    ),
    Row(
        "links-flap-on-the-same-error",
        "brokerd/sessions/fault_backoff.py",
        "        if count < 2:\n",
        "        if count:\n",
        "tests/sessions/test_fault_backoff.py::test_the_pause_doubles_up_to_a_bound_and_the_first_error_costs_none",
    ),
)
