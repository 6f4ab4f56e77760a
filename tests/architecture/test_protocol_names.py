"""Tests of protocol names: shared code names no protocol, and no word of one protocol or paper."""

from pathlib import Path

import pytest

from brokerd.protocols.registry import DEFINITIONS
from brokerd.simulator.checks.protocol_checks import simulation_of
from tests.architecture.layers import OURS
from tests.architecture.small_trees import ROOT, complain, plant
from tests.helpers.architecture import (
    find_protocol_imports,
    find_protocol_names,
    read_modules,
)

PROTOCOLS = [*DEFINITIONS]


# Names that are words, too, and are looked for as literals only.
WORDS = {"durable": '"durable"', "ges": '"ges"'}


# Modules that may import protocols: the registry, and the rooms of papers with the experiments,
# claims and figures of a protocol. A protocol's own room is below `brokerd.protocols`.
PROTOCOL_ROOMS = ("brokerd.protocols.registry", "bench.papers.*", "results.papers.*")


PROTOCOL_PATHS = (
    "brokerd/protocols/registry.py",
    *(f"brokerd/protocols/{name}" for name in PROTOCOLS),
    "bench/papers",
    "results/papers",
)


# The bounds of named logs are kept alike by a core, its disk and the simulated one.
_SEAM = tuple(
    f"brokerd.protocols.{name}"
    for name in (*("interface", "extensions", "definition", "registry", "parts.bounds"),)
)


NARROW = {
    f"brokerd.{package}": _SEAM for package in ("simulator", "wire", "runtime", "client", "agent")
} | {"brokerd.config": (), "brokerd.overlay": ()}


CACHES = {"__pycache__"}


def test_only_the_registry_refers_to_protocols() -> None:
    modules = read_modules(ROOT, OURS)
    complain(find_protocol_imports(modules, PROTOCOLS, PROTOCOL_ROOMS, NARROW))
    complain(find_protocol_names(ROOT, OURS, PROTOCOLS, PROTOCOL_PATHS, WORDS))


def test_no_shared_code_names_a_counter_or_a_word_of_one_protocol() -> None:
    for name, definition in DEFINITIONS.items():
        own = simulation_of(name)
        words = (*definition.chain_words, *own.counters, *own.timed_counters, *own.tallied)
        literals = {f'"{word}"': f"{name}'s {word}" for word in words}
        packages = ("bench", "brokerd", "fault_injection", "results")
        complain(find_protocol_names(ROOT, packages, [], PROTOCOL_PATHS, words=literals))


def test_modules_named_after_a_paper_are_in_its_package() -> None:
    papers = sorted({path.name for path in ROOT.glob("*/papers/*") if path.is_dir()} - CACHES)
    assert "dft11" in papers
    strays = [
        path.relative_to(ROOT).as_posix()
        for top in OURS
        for path in (ROOT / top).rglob("*.py")
        for paper in papers
        if paper in path.stem.split("_")
    ]
    assert strays == []


@pytest.mark.parametrize(
    "importer, source, is_found",
    [
        ("brokerd.protocols.registry", "import brokerd.protocols.ges.core", False),
        ("brokerd.protocols.ges.checks", "import brokerd.protocols.ges.core", False),
        ("bench.papers.ges.figures", "import brokerd.protocols.ges.core", False),
        ("brokerd.runtime.x", "import brokerd.protocols.definition", False),
        ("brokerd.runtime.x", "from brokerd.protocols import interface", False),
        ("pubsubctl.commands.x", "import brokerd.protocols.parts.deadlines", False),
        ("brokerd.runtime.x", "import brokerd.protocols.parts.deadlines", True),
        ("brokerd.config", "import brokerd.protocols.registry", True),
        ("brokerd.overlay.x", "from brokerd.protocols.registry import DEFAULT", True),
        ("brokerd.simulator.search.x", "def late():\n    import brokerd.protocols.ges", True),
        ("pubsubctl.commands.x", "from brokerd.protocols.ges.core import Core", True),
        ("bench.run.x", "from brokerd.protocols import ges", True),
        ("brokerd.protocols.definition", "import brokerd.protocols.ges.core", True),
        ("brokerd.protocols.gryphon.x", "import brokerd.protocols.ges.core", False),  # by layers
    ],
)
def test_an_import_of_a_protocol_is_found(
    tmp_path: Path, importer: str, source: str, is_found: bool
) -> None:
    names = ("ges.core", "gryphon.core", "interface", "definition", "registry", "parts.deadlines")
    plant(tmp_path, {f"brokerd.protocols.{name}": "" for name in names})
    plant(tmp_path, {importer: source})
    modules = read_modules(tmp_path, [path.name for path in tmp_path.iterdir()])
    found = find_protocol_imports(modules, ["ges", "gryphon"], PROTOCOL_ROOMS, NARROW)
    assert bool(found) == is_found, [*map(str, found)]


@pytest.mark.parametrize(
    "module, source, is_found",
    [
        ("pubsubctl.x", 'kind = "multi_proxy"', True),
        ("results.x", "# as MultiProxy does", True),
        ("brokerd.config", '"""Of multi_proxy."""', True),
        ("brokerd.config", '"""Of several proxies, in multi-proxy."""', False),
        ("brokerd.protocols.multi_proxy.core", "class MultiProxy: ...", False),
        ("brokerd.protocols.registry", "import multi_proxy", False),
        ("bench.papers.mp22.x", "multi_proxy = 1", False),
        ("brokerd.protocols.multi_proxies", "multi_proxy = 1", True),
    ],
)
def test_a_protocols_name_is_found(
    tmp_path: Path, module: str, source: str, is_found: bool
) -> None:
    plant(tmp_path, {module: source})
    rooms = ("brokerd/protocols/registry.py", "brokerd/protocols/multi_proxy", "bench/papers")
    tops = [path.name for path in tmp_path.iterdir()]
    found = find_protocol_names(tmp_path, tops, ["multi_proxy"], rooms)
    assert bool(found) == is_found, [*map(str, found)]
