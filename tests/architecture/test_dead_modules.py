"""Tests of dead modules: the product uses every module."""

from fnmatch import fnmatch
from pathlib import Path

from pubsubctl.commands.app import VERBS
from results.figures.run_figures import RUN_FIGURES
from tests.architecture.layers import OURS
from tests.architecture.small_trees import ROOT, complain, plant
from tests.helpers.architecture import (
    console_scripts,
    find_dead_modules,
    read_modules,
)

# Module that nothing in the product uses → why it stays.
KEPT: dict[str, str] = {
    "bench.systems.rabbitmq.driver": "configurations beside it name it",
}


FOUND_BY_NAME = (
    "brokerd.protocols.*.definition",
    *{f"pubsubctl.commands.{verb.place.partition(':')[0]}" for verb in VERBS},
    "bench.papers.*_experiments",
    *(f"results.figures.{figure.module}" for figure in RUN_FIGURES),
    "results.papers.*figures",
)
"""Modules that a registry imports by name."""


def test_every_module_is_used() -> None:
    entry_points = console_scripts(ROOT / "pyproject.toml")
    modules = read_modules(ROOT, OURS)
    found = {name for name in modules if any(fnmatch(name, each) for each in FOUND_BY_NAME)}
    complain(find_dead_modules(modules, {*entry_points, *found}, KEPT))


def test_a_module_that_nothing_uses_is_found_and_no_other(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "top.dead": "import top.dead",
            "top.imported": "",
            "top.from_imported": "from .imported import nothing",
            "top.registered": "from top import from_imported",
            "top.registry": "where = {'core': 'top.registered:Core'}",
            "top.spawned": "",
            "top.script": "if __name__ == '__main__':\n    import top.registry",
            "top.__main__": "command = ['python', '-m', 'top.spawned']",
            "top.console": "",
        },
    )
    findings = find_dead_modules(read_modules(tmp_path, ["top"]), {"top.console"}, {})
    assert [finding.what for finding in findings] == ["nothing imports top.dead"]


def test_an_exception_that_is_no_longer_one_is_found(tmp_path: Path) -> None:
    modules = read_modules(plant(tmp_path, {"top.a": "", "top.__main__": "import top.a"}), ["top"])
    findings = find_dead_modules(modules, (), {"top.a": "why", "top.gone": "why"})
    assert [finding.what for finding in findings] == ["top.gone is not dead", "top.a is not dead"]


def test_console_scripts_are_read_from_the_project_file() -> None:
    assert console_scripts(ROOT / "pyproject.toml") == {"pubsubctl.entry"}
