"""Tests of every story of an episode, run twice on the same brokers and clients.

The second run meets suspected brokers, full windows and moved topics. State of the first episode
must not affect the second.
"""

from collections.abc import Callable
from importlib import import_module
from inspect import isfunction, signature
from typing import Any

import pytest

from tests.helpers.twice import tell_twice

ONCE: dict[str, tuple[str, ...]] = {
    "tests.protocols.durable.test_absences": (),
    "tests.protocols.durable.test_consumers": (
        "committed_and_not_let_go_of",
        "test_the_newer_of_two_connections_of_a_consumer_continues_with_its_token",
    ),
    "tests.protocols.durable.test_early_release": (
        "a_smaller_policy_announces_its_gaps",
        "a_larger_policy_brings_nothing_back",
    ),
    "tests.protocols.durable.test_returns": (
        "test_a_broker_without_matching_subscribers_does_not_block_release",
        "test_a_token_received_after_its_session_closed_is_ignored",
        "test_a_returning_subscriber_receives_a_new_pubend_from_its_start",
    ),
    "tests.protocols.durable.test_slow_brokers": (),
    "tests.protocols.durable.test_stories": (
        "given_again",
        "new_beside_an_old_tail",
        "test_matching_events_of_a_run_are_delivered_to_a_client_at_once",
    ),
    "tests.protocols.ges.apart_stories": ("late_statements_of_a_departed_broker_arrive",),
    "tests.protocols.ges.readdress_stories": (
        "repeated_readdressing_waits_longer_each_time",
        "a_separated_part_becomes_a_unit",
        "in_the_end_all_are_where_they_were",
        "subscriptions_wait_until_neighbours_take_the_address",
        "a_returned_broker_keeps_its_address",
    ),
    "tests.protocols.ges.slow_stories": (
        "a_broker_that_all_find_slow_ends",
        "a_broker_that_recovers_in_time_stays",
    ),
    "tests.protocols.ges_reliable.test_stories": (
        "a_gatekeeper_fails_for_ever_and_its_subscriber_moves",
        "a_publisher_moves_with_unstored_publications",
        "all_is_well",
        "nothing_is_delivered_after_the_end_of_a_subscription",
        "a_client_that_dies_before_the_reply_starts_once",
        "a_client_that_detaches_elsewhere_leaves_no_state",
    ),
    "tests.protocols.ges_reliable.test_trees": (
        "a_publisher_moves_to_another_root_before_the_acknowledgement",
        "a_subscriber_roams_from_unit_to_unit",
        "publications_of_any_unit_reach_all_units",
        "a_client_that_moves_before_the_reply_is_stored_for_once",
    ),
    "tests.protocols.gryphon.test_cells": (
        "test_events_final_in_one_cell_still_reach_another_cell",
    ),
    "tests.protocols.gryphon.test_filters": (
        "kept_where_the_pubend_is_done",
        "test_a_subscription_starts_when_all_pubends_can_be_reached",
        "test_a_cell_keeps_no_event_that_one_of_its_brokers_has_filtered",
    ),
    "tests.protocols.gryphon.test_losses": (
        "test_an_event_overtaken_for_longer_is_requested_once_and_accepted_once",
    ),
    "tests.protocols.gryphon.test_slow_brokers": (),
    "tests.protocols.gryphon.test_stories": (
        "test_a_client_that_stays_away_holds_events_until_its_subscription_ends",
    ),
    "tests.protocols.gryphon.test_total_order": (),
    "tests.protocols.multi_proxy.test_arbiter": (
        "a_candidate_that_dies_is_replaced",
        "a_first_owner_is_announced_to_proxies_only",
        "owners_are_announced_when_their_arbiter_fails",
        "test_an_arbiter_that_is_down_delays_new_topics_only",
        "test_topics_go_to_the_server_with_fewest",
    ),
    "tests.protocols.multi_proxy.test_causal_ownership": (
        "a_topic_without_followers_is_released",
        "crash_of_all_servers_while_they_merge",
        "crash_of_the_giver",
        "views_of_two_partitioned_proxies_are_merged",
        "publications_during_a_transfer_arrive_once",
        "publications_from_before_a_merge_are_delivered_after_it",
    ),
    "tests.protocols.multi_proxy.test_decommissioning": (
        "a_dead_one_has_nothing_kept_for_it",
        "a_decommissioned_broker_that_returns_stops",
        "known_after_restarts_of_all_others",
        "test_a_missed_decommission_is_learned_from_neighbours",
    ),
    "tests.protocols.multi_proxy.test_retention": (
        "the_newest_record_is_kept_at_any_size",
        "events_in_transfer_are_kept_without_room",
    ),
    "tests.protocols.multi_proxy.test_scenarios": (
        "b09_string_order",
        "b19_stale_map_recreate",
    ),
    "tests.protocols.multi_proxy.test_stories": (
        "a_publisher_is_done_when_all_topics_are",
        "a_put_is_tried_again_over_another_proxy_and_stored_once",
        "test_publications_are_routed_around_a_dead_proxy",
        "test_a_new_subscription_after_an_unsubscribe_receives_no_earlier_publications",
    ),
    "tests.simulator.test_relayed_sessions": (
        "test_two_brokers_without_a_third_wait_for_their_link",
    ),
    "tests.simulator.test_stories": (
        "test_islands_treated_as_barriers_are_safe_but_receive_less",
        "test_separately_confirmed_parts_of_a_frame_are_all_acknowledged",
        "test_publications_of_sources_behind_an_island_are_received_at_once",
        "test_publications_withheld_by_a_barrier_are_announced_and_precede_the_stream",
    ),
}
"""Modules with stories, and the stories that run once only: they count from the start of the
cluster, name the first subscription of a client, or end with a broker, client, topic or policy that
does not return to its former place.
"""


def _stories(module: str) -> dict[str, Callable[[], Any]]:
    return {
        f"{module.partition('.')[2]}::{name}": story
        for name, story in vars(import_module(module)).items()
        if isfunction(story) and story.__module__ == module and not signature(story).parameters
        if not name.startswith("_") and name not in ONCE[module]
    }


STORIES = {name: story for module in ONCE for name, story in _stories(module).items()}


@pytest.mark.sampled
@pytest.mark.parametrize("name", STORIES)
def test_a_story_runs_the_second_time_as_the_first(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_twice(STORIES[name], monkeypatch)


def test_each_story_excluded_from_repetition_exists() -> None:
    for module, names in ONCE.items():
        assert all(isfunction(getattr(import_module(module), name)) for name in names), module
