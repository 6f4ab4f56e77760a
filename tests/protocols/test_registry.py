"""Registration of protocols: values shared by mistake are reported at import."""

import subprocess
import sys

import pytest

from brokerd.errors import ConfigError
from brokerd.protocols.definition import CoreContext
from brokerd.protocols.registry import (
    DEFINITIONS,
    Registration,
    Registry,
    core_counters,
    definition_of,
    protocol_on,
)
from tests.helpers.gryphon_stories import paper_cells

BEST_EFFORT = "brokerd.protocols.best_effort.definition:BEST_EFFORT"
PLAIN = Registration("best_effort", BEST_EFFORT, "tree", (range(32, 48),))


def test_each_is_found_by_its_name() -> None:
    assert {name: definition_of(name) for name in DEFINITIONS} == DEFINITIONS
    with pytest.raises(ConfigError, match="protocol = 'delta_tre'; did you mean 'delta_tree'"):
        definition_of("delta_tre")


def test_each_message_has_a_number_of_its_protocol() -> None:
    for name, definition in DEFINITIONS.items():
        assert {DEFINITIONS.protocol_of(kind.number) for kind in definition.messages} == {name}


def test_all_brokers_of_a_topology_have_the_counters_of_their_protocol() -> None:
    topology = paper_cells()
    for name in ("gryphon", "durable"):
        running = protocol_on(topology, name)
        expected = core_counters(topology, name)
        for broker in range(len(topology.brokers)):
            context = CoreContext(
                broker=broker,
                topology=running.topology,
                parameters=running.parameters,
                decode_attributes=lambda blobs: [],
            )
            found = definition_of(name).make_core(context).statistics()
            assert expected == {each for each in found if "." not in each}, topology.brokers[broker]


def test_a_protocol_is_imported_when_it_is_asked_for() -> None:
    program = (
        "import sys; from brokerd.wire import codec; from brokerd.protocols import registry; "
        "registry.definition_of('delta_tree'); "
        "print(*sorted({name.split('.')[2] for name in sys.modules "
        "if name.startswith('brokerd.protocols.')} & {*registry.DEFINITIONS}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["delta_tree"]


def test_a_duplicate_name_is_refused_and_both_protocols_are_named() -> None:
    second = Registration("best_effort", "gossip.definition:GOSSIP", "tree", ())
    with pytest.raises(ImportError, match=r"best_effort\.definition.* and gossip\.definition"):
        Registry([PLAIN, second])


@pytest.mark.parametrize(
    "numbers, why",
    [
        (range(40, 50), "best_effort and gossip both have 40"),
        (range(31, 32), "gossip has the number 31, which no protocol may"),
    ],
)
def test_a_message_number_that_is_not_free_is_refused(numbers: range, why: str) -> None:
    with pytest.raises(ImportError, match=why):
        Registry([PLAIN, Registration("gossip", "gossip.definition:GOSSIP", "tree", (numbers,))])


@pytest.mark.parametrize(
    "row, why",
    [
        (
            ("gossip", BEST_EFFORT, "tree", (range(32, 48),)),
            "registered as 'gossip' on kind 'tree'",
        ),
        (("best_effort", BEST_EFFORT, "cells", (range(32, 48),)), "registered as .* 'cells'"),
        (("best_effort", BEST_EFFORT, "tree", (range(48, 64),)), "has the number 32, which is not"),
    ],
)
def test_a_definition_that_is_registered_otherwise_is_refused(
    row: tuple[str, str, str, tuple[range, ...]], why: str
) -> None:
    with pytest.raises(ImportError, match=why):
        Registry([Registration(*row)])[row[0]]
