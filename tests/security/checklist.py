"""The security rules of the design, with the tests that fail if a rule is broken.

`python -m tests.security.checklist` prints the table. test_checklist.py checks that no rule is
missing, that every named test exists, and that no rule of severity A lacks a test.
"""

from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["A", "B", "C"]
"""A: before any use off this machine. B: before a release. C: hardening."""

_SECURITY: Final = "tests/security/"
_SSH: Final = f"{_SECURITY}test_ssh.py::"
_TRUST: Final = f"{_SECURITY}test_ssh_trust.py::"
_WORDS: Final = f"{_SECURITY}test_ssh_words.py::"
_INVENTORY: Final = f"{_SECURITY}test_inventory.py::"
_TLS: Final = f"{_SECURITY}test_tls.py::"
_CONNECTIONS: Final = f"{_SECURITY}test_connections.py::"
_FILES: Final = f"{_SECURITY}test_files.py::"
_SLOW: Final = f"{_SECURITY}test_slow_subscribers.py::"
_SUPPLY: Final = f"{_SECURITY}test_supply.py::"
_PREDICATES: Final = f"{_SECURITY}test_predicates.py::"
_DEPLOYED: Final = "tests/end_to_end/test_security.py::"
_SECRETS: Final = f"{_DEPLOYED}test_a_secured_deployment_reveals_no_secrets"
_BOMBS: Final = "tests/wire/test_bombs.py::"
_FRAMING: Final = "tests/wire/test_framing.py::"
_LINKS: Final = "tests/runtime/test_links.py::"
_CONTROL: Final = "tests/runtime/test_control.py::"
_HOSTS: Final = "tests/pubsubctl/test_ssh_hosts.py::"
_COPYING: Final = "tests/pubsubctl/test_ssh_connections.py::"


@dataclass(frozen=True)
class Rule:
    """One line of the checklist.

    Attributes:
        tests: node ids without parameters.
        missing: the untested part, and the reason; "" if all is tested.
        does_not_apply: the reason why no code could break the rule; "" if some could.
    """

    id: str
    severity: Severity
    rule: str
    tests: tuple[str, ...] = ()
    missing: str = ""
    does_not_apply: str = ""

    @property
    def state(self) -> str:
        """Return the state in a word."""
        if self.does_not_apply:
            return "does not apply"
        if not self.tests:
            return "open"
        return "partly" if self.missing else "tested"


RULES: Final = (
    Rule(
        "S-SSH-1",
        "A",
        "unknown host key: refused, on every hop",
        (
            f"{_SSH}test_an_unknown_key_is_refused_before_any_login",
            f"{_SSH}test_every_hop_is_checked",
            f"{_SSH}test_three_modules_alone_use_ssh_libraries_and_never_trust_unknown_keys",
        ),
    ),
    Rule(
        "S-SSH-2",
        "A",
        "changed host key: refused, known_hosts stays as it is",
        (
            f"{_SSH}test_a_changed_key_is_refused_and_the_file_stays_as_it_is",
            f"{_SSH}test_another_kind_of_key_is_a_changed_key_too",
        ),
    ),
    Rule(
        "S-SSH-3",
        "A",
        "first contact is explicit, with the fingerprint",
        (
            f"{_TRUST}test_a_script_without_a_fingerprint_trusts_no_host",
            f"{_TRUST}test_a_person_is_shown_the_fingerprint_and_has_to_type_yes",
            f"{_TRUST}test_the_right_fingerprint_is_trusted_and_the_file_is_private",
        ),
    ),
    Rule(
        "S-SSH-4",
        "B",
        "keys and agent only; nothing forwarded",
        (
            f"{_SSH}test_only_keys_are_tried_and_no_agent_is_forwarded",
            f"{_INVENTORY}test_a_secret_that_was_written_down_is_not_repeated",
        ),
    ),
    Rule(
        "S-SSH-5",
        "B",
        "commands in ~/.ssh/config do not run unasked",
        (f"{_SSH}test_commands_in_the_users_ssh_configuration_run_only_on_request",),
    ),
    Rule(
        "S-SSH-6",
        "B",
        "no SHA-1 signatures",
        (
            f"{_SSH}test_signatures_made_with_sha1_are_not_taken",
            f"{_SSH}test_the_locked_paramiko_is_one_that_refuses_sha1",
        ),
    ),
    Rule(
        "S-INV-1",
        "A",
        "remote commands are lists, quoted word by word, in one place",
        (
            f"{_WORDS}test_any_word_arrives_as_it_is_through_a_real_shell",
            f"{_WORDS}test_words_that_no_command_line_can_carry_are_refused",
            f"{_WORDS}test_commands_begin_in_one_module_only_and_are_never_written_as_text",
        ),
    ),
    Rule(
        "S-INV-2",
        "A",
        "hostile inventories are refused before anything is done",
        (
            f"{_INVENTORY}test_each_hostile_inventory_is_refused_as_a_file",
            f"{_INVENTORY}test_no_command_starts_anything_from_a_hostile_inventory",
        ),
    ),
    Rule(
        "S-INV-3",
        "A",
        "files are data: no tags, no alias bombs, bounded",
        (
            "tests/pubsubctl/test_import.py::test_hostile_inventories_are_refused_without_side_effects",
            "tests/pubsubctl/test_import.py::test_a_file_that_is_too_large_is_not_read",
        ),
    ),
    Rule(
        "S-INV-4",
        "A",
        "secrets are in no result, log, command line or message",
        (
            _SECRETS,
            f"{_INVENTORY}test_a_secret_that_was_written_down_is_not_repeated",
            "tests/pubsubctl/test_import.py::test_a_password_is_neither_imported_nor_repeated",
        ),
    ),
    Rule(
        "S-INV-5",
        "B",
        "--dry-run shows the commands that run",
        (f"{_HOSTS}test_a_deployment_is_made_once_and_leaves_nothing",),
    ),
    Rule(
        "S-SUDO-1",
        "B",
        "brokers run unprivileged, and nothing of ours uses sudo",
        (
            f"{_SUPPLY}test_brokers_run_as_an_unprivileged_user_and_request_no_privileges",
            f"{_SUPPLY}test_the_unit_is_confined",
        ),
    ),
    Rule(
        "S-PERM-1",
        "A",
        "files are 0600, folders 0700, links in the way are refused",
        (
            f"{_FILES}test_an_obstacle_in_place_of_a_private_file_is_refused_and_unchanged",
            f"{_FILES}test_a_folder_that_is_a_link_is_refused",
            f"{_FILES}test_private_files_are_inaccessible_to_others_under_any_umask",
            f"{_CONTROL}test_a_folder_that_others_can_enter_is_refused",
            _SECRETS,
        ),
    ),
    Rule(
        "S-TAR-1",
        "A",
        "what comes from hosts is listed regular files, by plain names, bounded; no archives",
        (
            f"{_FILES}test_a_host_that_lists_a_hostile_name_is_not_collected_from",
            f"{_FILES}test_a_host_that_lists_too_much_or_nonsense_is_not_collected_from",
            f"{_FILES}test_archives_are_read_file_by_file_and_never_unpacked",
            f"{_COPYING}test_only_regular_files_of_the_agreed_size_are_fetched",
            f"{_COPYING}test_paths_that_could_mean_something_else_are_refused",
        ),
    ),
    Rule(
        "S-TAR-2",
        "B",
        "collected content is shown as text",
        (
            "tests/results/test_report.py::test_hostile_text_is_shown_and_does_nothing",
            "tests/results/test_report.py::test_control_and_direction_characters_are_made_visible",
        ),
    ),
    Rule(
        "S-CBOR-1",
        "A",
        "one strict decoder, then a schema by message type",
        (
            f"{_BOMBS}test_the_corpus_is_as_large_as_promised",
            f"{_BOMBS}test_a_bomb_is_no_value_alone_or_inside_another",
            f"{_BOMBS}test_a_bomb_is_no_message_and_no_attribute_map",
            f"{_BOMBS}test_no_tag_passes_whatever_it_carries",
            "tests/wire/test_codec.py::test_an_invalid_message_is_refused_with_a_reason",
            f"{_LINKS}test_a_protocol_violation_closes_a_session_after_its_earlier_messages",
        ),
    ),
    Rule(
        "S-CBOR-2",
        "A",
        "no byte may follow",
        ("tests/wire/test_codec.py::test_every_truncation_and_every_extra_byte_is_refused",),
    ),
    Rule(
        "S-CBOR-3",
        "B",
        "nothing decoded is shown unbounded",
        (f"{_BOMBS}test_a_bomb_is_no_message_and_no_attribute_map",),
    ),
    Rule(
        "S-CBOR-4",
        "B",
        "the decoder is one that survives deep nesting",
        (
            f"{_SUPPLY}test_locked_packages_meet_the_security_floors",
            f"{_BOMBS}test_a_bomb_is_no_value_alone_or_inside_another",
        ),
    ),
    Rule(
        "S-FRAME-1",
        "A",
        "lengths are checked before anything is kept",
        (
            f"{_FRAMING}test_a_senseless_length_is_refused_as_soon_as_it_is_there",
            f"{_FRAMING}test_connections_that_claim_much_and_send_little_cost_little",
            f"{_FRAMING}test_single_bytes_cost_no_more_than_the_frame",
            f"{_BOMBS}test_a_stranger_is_refused_by_the_first_bytes",
        ),
    ),
    Rule(
        "S-FRAME-2",
        "A",
        "strangers have 4 KiB and 5 s, frames 10 s",
        (
            f"{_LINKS}test_a_connection_that_trickles_a_hello_is_closed_after_five_seconds",
            f"{_LINKS}test_a_client_that_trickles_a_frame_is_disconnected_while_others_continue",
            f"{_TLS}test_a_client_that_trickles_a_record_is_cut_off",
            f"{_CONNECTIONS}test_five_hundred_trickling_connections_are_closed_while_others_are_served",
        ),
    ),
    Rule(
        "S-FLOOD-1",
        "A",
        "connections are bounded, in all, by address and for strangers; brokers have places",
        (
            f"{_CONNECTIONS}test_five_thousand_connects_disturb_no_broker_and_a_client_gets_in",
            f"{_CONNECTIONS}test_a_flood_evicts_its_own_and_others_keep_their_places",
            f"{_CONNECTIONS}test_connections_per_address_are_limited_and_places_are_reused",
            f"{_CONNECTIONS}test_clients_cannot_use_the_places_reserved_for_brokers",
            f"{_CONNECTIONS}test_places_leave_file_descriptors_for_everything_else",
        ),
    ),
    Rule(
        "S-BP-1",
        "A",
        "a subscriber that takes nothing is bounded, evicted and counted",
        (
            f"{_SLOW}test_a_subscriber_that_reads_nothing_is_evicted_without_delay_to_others",
            f"{_SLOW}test_all_clients_wait_for_a_stalled_subscriber_without_the_eviction_rule",
            f"{_SLOW}test_a_slow_subscriber_keeps_its_subscription",
            f"{_SECURITY}test_slow_subscriber_for_long.py::"
            "test_brokers_stay_small_and_serve_others_despite_a_client_that_never_reads",
            f"{_LINKS}test_a_peer_that_never_reads_loses_its_session_and_no_frame_before_that",
        ),
    ),
    Rule(
        "S-WIRE-1",
        "A",
        "a Hello says for which session, deployment, topology and version; none is taken twice",
        (
            f"{_TLS}test_a_recorded_session_that_is_played_again_gets_no_answer",
            f"{_CONNECTIONS}test_a_recorded_plaintext_session_is_refused_while_it_is_up_and_afterwards",
            f"{_CONNECTIONS}test_a_broker_with_a_mismatched_hello_is_refused_with_a_farewell",
            f"{_CONNECTIONS}test_no_command_is_obeyed_over_a_link",
        ),
    ),
    Rule(
        "S-CT-1",
        "B",
        "checkpoint tokens are authenticated",
        does_not_apply="no protocol here has checkpoint tokens: a client resumes by numbers",
    ),
    Rule(
        "S-TLS-1",
        "A",
        "mutual TLS 1.3; plaintext on loopback only, and said so in the manifest",
        (
            f"{_TLS}test_a_peer_without_a_valid_certificate_receives_no_answer",
            f"{_TLS}test_plaintext_gets_no_answer_where_there_are_certificates",
            f"{_TLS}test_nothing_is_dialled_off_loopback_without_certificates",
            "tests/runtime/test_process.py::"
            "test_a_configuration_that_cannot_be_used_is_refused_with_the_reason",
            _SECRETS,
        ),
    ),
    Rule(
        "S-TLS-2",
        "A",
        "who it is stands in the certificate and must be what Hello and topology say",
        (
            f"{_TLS}test_a_member_that_speaks_as_another_is_refused",
            f"{_TLS}test_a_member_of_another_deployment_is_refused",
            f"{_TLS}test_a_client_that_sends_a_broker_message_is_disconnected",
            f"{_TLS}test_a_broker_sends_no_hello_to_another_peer_than_it_dialled",
        ),
    ),
    Rule(
        "S-TLS-3",
        "A",
        "handshakes have 5 s; whoever fails closes",
        (
            f"{_TLS}test_a_stalled_handshake_is_aborted_after_five_seconds",
            f"{_TLS}test_a_handshake_that_never_ends_is_cut_off_by_its_size",
            f"{_TLS}test_an_end_that_rejects_a_certificate_closes_the_connection",
        ),
    ),
    Rule(
        "S-TLS-4",
        "B",
        "the authority's key stays on the controller; certificates end within 30 days",
        (
            _SECRETS,
            f"{_FILES}test_certificates_end_within_thirty_days_and_a_longer_one_is_not_to_be_had",
            f"{_FILES}test_an_authority_that_others_could_be_is_refused",
            f"{_TLS}test_a_certificate_is_renewed_while_sessions_continue",
            f"{_FILES}test_certificates_for_tests_are_not_made_by_a_package_that_trusts_them",
        ),
    ),
    Rule(
        "S-AUTHZ-1",
        "B",
        "a client publishes as itself, so often, and has so many subscriptions",
        (
            f"{_TLS}test_a_member_that_speaks_as_another_is_refused",
            "tests/protocols/conformance.py::test_a_client_has_so_many_subscriptions_and_no_more",
            f"{_CONNECTIONS}test_a_publisher_above_its_rate_is_delayed_without_delay_to_others",
            "tests/security/test_session_fuzz.py::test_no_session_of_a_client_ends_a_broker",
        ),
    ),
    Rule(
        "S-CTRL-1",
        "A",
        "fault commands over a Unix socket of mode 0600 only, and only where enabled",
        (
            f"{_CONNECTIONS}test_no_command_is_obeyed_over_a_link",
            f"{_CONNECTIONS}test_no_message_of_the_wire_is_a_command",
            "tests/runtime/test_process.py::test_a_broker_accepts_faults_only_if_fault_injection_is_enabled",
            f"{_CONTROL}test_the_socket_is_for_its_owner_alone",
        ),
    ),
    Rule(
        "S-PRED-1",
        "A",
        "predicates are parsed, bounded and never run",
        (
            "tests/model/test_predicate.py::"
            "test_a_predicate_that_cannot_be_used_is_refused_with_the_reason",
            f"{_PREDICATES}test_every_accepted_value_is_bounded",
            f"{_PREDICATES}test_no_regular_expression_is_compiled_from_input",
            "tests/architecture/test_dangerous_calls.py::test_nothing_executes_data_or_trusts_an_unknown_host",
        ),
    ),
    Rule(
        "S-PRED-2",
        "B",
        "ten thousand near-identical predicates",
        (f"{_PREDICATES}test_ten_thousand_near_identical_predicates_are_not_tried_one_by_one",),
    ),
    Rule(
        "S-SPARK-1",
        "A",
        "Spark listens on loopback only, without a page, in folders of its own",
        (
            "tests/results/test_spark.py::"
            "test_spark_works_without_a_java_on_the_machine_and_leaves_nothing_behind",
            "tests/results/test_spark.py::test_a_cluster_session_does_not_use_loopback",
        ),
    ),
    Rule(
        "S-SPARK-2",
        "B",
        "no query is built from log text",
        (
            f"{_PREDICATES}test_no_query_is_built_from_log_contents",
            "tests/results/test_load.py::test_a_name_that_resembles_a_command_is_loaded_as_text",
        ),
    ),
    Rule(
        "S-UNIT-1",
        "B",
        "the systemd unit is confined",
        (
            f"{_SUPPLY}test_the_unit_is_confined",
            f"{_SUPPLY}test_systemd_accepts_every_setting_of_the_unit",
        ),
        missing="scored and verified offline; not started under systemd",
    ),
    Rule(
        "S-PIP-1",
        "B",
        "hosts install locked wheels by hash, without a network",
        (
            f"{_HOSTS}test_a_byte_flipped_in_a_wheel_is_found_before_any_host_is_touched",
            f"{_HOSTS}test_a_byte_flipped_on_one_host_keeps_the_bundle_from_all",
        ),
    ),
    Rule(
        "S-PIP-2",
        "C",
        "floors of packages with advisories",
        (f"{_SUPPLY}test_locked_packages_meet_the_security_floors",),
    ),
    Rule(
        "S-LOG-1",
        "B",
        "results for publication name no hosts or users",
        (
            "tests/pubsubctl/test_packing.py::"
            "test_no_name_of_a_host_or_user_is_left_and_the_logs_are_the_same",
        ),
    ),
)


def table() -> str:
    """Return the checklist as Markdown."""
    lines = ["| id | severity | rule | state | tests |", "|---|---|---|---|---|"]
    for rule in RULES:
        why = rule.missing or rule.does_not_apply
        state = f"{rule.state}: {why}" if why else rule.state
        tests = "<br>".join(f"`{test.partition('::')[2]}`" for test in rule.tests) or "none"
        lines.append(f"| {rule.id} | {rule.severity} | {rule.rule} | {state} | {tests} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())  # noqa: T201
