"""Tests of import layers: every module imports only the packages that its layer allows."""

from pathlib import Path

import pytest

from tests.architecture.layers import LAYERS, OURS
from tests.architecture.small_trees import ROOT, complain, plant
from tests.helpers.architecture import (
    Finding,
    find_forbidden_imports,
    imports_of,
    read_modules,
)


def test_every_import_is_one_that_its_package_may_make() -> None:
    complain(find_forbidden_imports(read_modules(ROOT, OURS), LAYERS, OURS))


def forbidden(root: Path) -> list[str]:
    tops = [path.name for path in root.iterdir()]
    return [f.what for f in find_forbidden_imports(read_modules(root, tops), LAYERS, OURS)]


@pytest.mark.parametrize(
    "importer, source, what",
    [
        ("brokerd.model.tick", "import brokerd.runtime", "imports brokerd.runtime"),
        ("brokerd.model.tick", "import cbor2", "imports the package cbor2"),
        ("brokerd.matching.index", "from brokerd import wire", "imports brokerd.wire"),
        ("brokerd.protocols.ges.checks", "from ..gryphon import ticks", "brokerd.protocols.gryph"),
        ("brokerd.simulator.world.x", "import brokerd.protocols.ges.core", "brokerd.protocols.ges"),
        (
            "brokerd.runtime.x",
            "import brokerd.protocols.ges.checks",
            "brokerd.protocols.ges.checks",
        ),
        ("brokerd.protocols.ges.core", "from ..gryphon import ticks", "brokerd.protocols.gryph"),
        ("brokerd.protocols.ges.core", "from brokerd.history import writer", "history.writer"),
        (
            "brokerd.protocols.ges_reliable.core",
            "import brokerd.protocols.ges.messages",
            "brokerd.protocols.ges.messages",
        ),
        ("brokerd.wire.codec", "import brokerd.protocols.ges.core", "brokerd.protocols.ges.core"),
        ("brokerd.sessions.session", "import brokerd.wire", "imports brokerd.wire"),
        ("brokerd.client.core", "import trio", "imports the package trio"),
        (
            "brokerd.simulator.world.cluster",
            "import brokerd.runtime.driver",
            "brokerd.runtime.driver",
        ),
        ("brokerd.simulator.world.cluster", "import brokerd.agent", "imports brokerd.agent"),
        ("brokerd.runtime.driver", "import brokerd.simulator.world.clock", "world.clock"),
        (
            "brokerd.agent.agent",
            "import bench.load.load_generator",
            "imports bench.load.load_generator",
        ),
        ("fault_injection.apply.backends", "import brokerd.runtime.links", "brokerd.runtime.links"),
        ("bench.run.coordinator", "import brokerd.runtime.links", "imports brokerd.runtime.links"),
        ("bench.run.coordinator", "import brokerd.agent.agent", "imports brokerd.agent.agent"),
        (
            "bench.run.coordinator",
            "import results.checker.checks",
            "imports results.checker.checks",
        ),
        ("results.rules.expectation", "import brokerd.model", "imports brokerd.model"),
        ("results.rules.expectation", "import numpy", "imports the package numpy"),
        ("results.reference.rule", "import results.rules.risks", "imports results.rules.risks"),
        ("results.reference.contents", "import cbor2", "imports the package cbor2"),
        (
            "results.rules.withholding",
            "import brokerd.model.identity",
            "imports brokerd.model.identity",
        ),
        ("results.tables.load", "import brokerd.model.identity", "imports brokerd.model.identity"),
        ("pubsubctl.commands.plot", "import results.figures", "outside a function"),
        ("pubsubctl.deployment.deploy", "import requests", "imports the package requests"),
        ("brokerd.__init__", "from brokerd.runtime import driver", "imports brokerd.runtime"),
        ("brokerd.client.__init__", "from brokerd.client.client import connect", "client.client"),
        ("brokerd.surprise.module", "", "no rule says what this may import"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, importer: str, source: str, what: str) -> None:
    plant(tmp_path, {"brokerd.protocols.gryphon.knowledge": "", "brokerd.history.writer": ""})
    plant(tmp_path, {"brokerd.wire.codec": "", importer: source})
    assert any(what in finding for finding in forbidden(tmp_path))


@pytest.mark.parametrize(
    "importer, source",
    [
        ("brokerd.model.publication", "import struct\nfrom brokerd.model import identity"),
        ("brokerd.model.publication", "from .identity import BrokerId"),
        ("brokerd.protocols.ges.checks.steps", "from .. import messages"),
        ("brokerd.protocols.ges.core", "from . import messages\nfrom ..interface import Event"),
        ("brokerd.protocols.ges_reliable.core", "from brokerd.protocols.ges import UnitRouter"),
        ("brokerd.wire.codec", "import cbor2\nimport brokerd.protocols.registry"),
        ("brokerd.simulator.world.cluster", "import brokerd.client.core, brokerd.errors"),
        ("bench.run.machine", "import brokerd.runtime.process, brokerd.agent.agent"),
        ("bench.run.machine", "from bench.load.load_generator import run"),
        ("bench.run.coordinator", "import brokerd.agent.client, results.rules.expectation"),
        ("results.reference.rule", "from results import terms"),
        (
            "results.tables.load",
            "import pyspark, brokerd.history.reader, results.rules.expectation",
        ),
        ("pubsubctl.commands.plot", "def plot():\n    import results.figures"),
        ("pubsubctl.deployment.deploy", "from brokerd.agent.client import attach\nimport fabric"),
    ],
)
def test_an_allowed_import_is_left_alone(tmp_path: Path, importer: str, source: str) -> None:
    plant(tmp_path, {"brokerd.model.identity": "", "brokerd.protocols.ges.messages": ""})
    plant(tmp_path, {"brokerd.protocols.interface": "", "results.rules.expectation": ""})
    plant(tmp_path, {"results.rules.terms": ""})
    plant(tmp_path, {importer: source})
    assert forbidden(tmp_path) == []


def test_imports_are_seen_wherever_they_stand(tmp_path: Path) -> None:
    source = (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n"
        "    import one\n"
        "def later():\n"
        "    import two\n"
        "try:\n"
        "    from three import four\n"
        "except ImportError:\n"
        "    pass\n"
    )
    modules = read_modules(plant(tmp_path, {"top.module": source}), ["top"])
    seen = [(i.target, i.line, i.late) for i in imports_of(modules["top.module"], modules)]
    assert seen == [("typing", 1, False), ("one", 3, True), ("two", 5, True), ("three", 7, False)]


def test_a_finding_states_its_place_and_reason() -> None:
    finding = Finding("brokerd/model/x.py", 3, "x imports y", "y is above x")
    assert str(finding) == "brokerd/model/x.py:3: x imports y\n    because y is above x"
