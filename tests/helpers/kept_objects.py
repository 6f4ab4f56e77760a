"""Objects of cores that the checks of a simulated world keep."""

import gc
from collections.abc import Iterable
from enum import Enum
from random import Random
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

from brokerd.overlay.graph import OverlayGraph
from brokerd.overlay.topology import Topology
from brokerd.simulator.search.exploration.small_world import WorldState

_PASSED_BY = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, Random)
_VALUES = (str, int, float, bytes, tuple, frozenset, range, memoryview, Enum, CellType)


def list_kept_objects(state: WorldState) -> list[str]:
    """Return the classes of variable objects that both a core and a check refer to."""
    cluster = state.acted.cluster
    brokers = [broker for broker in cluster.brokers if broker.alive]
    cores = [core for broker in brokers for core in (broker.core, broker.protocol)]
    ends = (*cores, *cluster.brokers, cluster.network, cluster.schedule, cluster.oracle)
    of_cores = _reach(cores, [])
    of_checks = _reach([cluster.checker.own, cluster.checker.marks], ends)
    both = [of_cores[key] for key in of_cores.keys() & of_checks.keys()]
    return sorted(type(item).__qualname__ for item in both if _is_variable(item))


def _reach(roots: Iterable[Any], ends: Iterable[Any]) -> dict[int, Any]:
    last = {id(each) for each in ends}
    found: dict[int, Any] = {}
    ahead = list(roots)
    while ahead:
        item = ahead.pop()
        if id(item) not in found and id(item) not in last and not isinstance(item, _PASSED_BY):
            found[id(item)] = item
            ahead += gc.get_referents(item)
    return found


def _is_variable(item: Any) -> bool:
    """Return False for values, messages, and the overlay, which no step of a core changes."""
    kind = type(item)
    is_message = kind.__module__.endswith((".messages", "_messages", ".publication"))
    return (
        not is_message
        and not isinstance(item, (*_VALUES, OverlayGraph, Topology))
        and (
            not getattr(kind, "__dataclass_params__", None) or not kind.__dataclass_params__.frozen
        )
        and item is not None
    )
