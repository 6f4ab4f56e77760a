"""Mistakes in joining what stays: who then waits for whom, what comes again, what is confirmed."""

from typing import Final

from tests.helpers.planted_stories import Row

_TREE: Final = "brokerd/protocols/delta_tree/publications/"
_STORIES: Final = "tests/protocols/delta_tree/test_joining.py::"
_IN_HASTE: Final = _STORIES + "test_brokers_that_join_in_haste_keep_every_promise"

ROWS: Final = (
    Row(
        "joins-what-waits-for-different-clients",
        _TREE + "joining.py",
        "tuple(hops), entry.clients, entry.deliveries",
        "tuple(hops)",
        _STORIES + "test_nobody_waits_for_a_client_that_others_wait_for",
    ),
    Row(
        "joins-what-waits-for-different-neighbours",
        _TREE + "joining.py",
        "tuple(hops), entry.clients, entry.deliveries",
        "entry.clients, entry.deliveries",
        _STORIES + "test_nobody_waits_for_a_neighbour_that_others_wait_for",
    ),
    Row(
        "receipt-waits-for-every-part",
        _TREE + "joining.py",
        "            receipt.remaining -= count - 1\n",
        "",
        _IN_HASTE,
        {"seed": 7},
    ),
    Row(
        "frames-of-joined-entries-overlap",
        _TREE + "joining.py",
        "            entry.frame_first = first\n",
        "            entry.frame_first = entry.first\n",
        _STORIES + "test_nobody_waits_for_a_neighbour_that_others_wait_for",
    ),
    Row(
        "joined-receipt-forgets-a-hole",
        _TREE + "entries.py",
        "            elif first == self.more[-1] + 1:",
        "            elif first <= self.more[-1] + 2:",
        _STORIES + "test_nobody_waits_for_a_neighbour_that_others_wait_for",
    ),
    Row(
        "transfers-of-parts-stay",
        _TREE + "queue.py",
        "[each for each in between if each.entry.part_of is None]",
        "between[:]",
        _STORIES + "test_what_a_neighbour_does_not_confirm_is_joined_and_comes_again_as_it_was",
    ),
    Row(
        "delivery-of-a-part-is-lost",
        _TREE + "queue.py",
        "            entry = entry.part_of\n",
        "            return\n",
        _IN_HASTE,
        {"seed": 7},
    ),
    Row(
        "joined-delivery-counts-for-each",
        "brokerd/protocols/parts/clients/outlets.py",
        "        wholes.count_out(whole, count - 1)\n",
        "        wholes.count_out(whole, 0)\n",
        _STORIES + "test_a_client_that_comes_back_gets_what_was_joined_meanwhile_in_order",
    ),
    Row(
        "deliveries-joined-past-another-subscription",
        "brokerd/protocols/parts/clients/outlets.py",
        "            or delivery.subscriptions != self.deliveries[0].subscriptions\n",
        "",
        _STORIES + "test_each_of_two_subscriptions_gets_its_own_in_order",
    ),
    Row(
        "slices-of-another-run",
        "brokerd/model/joined_runs.py",
        "        if spans and spans[-1][0] == number and spans[-1][2] == start:",
        "        if spans and spans[-1][2] == start:",
        _STORIES + "test_a_client_that_comes_back_gets_what_was_joined_meanwhile_in_order",
    ),
)
