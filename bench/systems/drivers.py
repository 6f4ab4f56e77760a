"""Finds a driver: the module of a system under test with its `SYSTEM`."""

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from bench.systems.boundary import System
from brokerd.errors import ConfigError


class WrongDriver(ConfigError):
    """A configuration that names no driver; says file, key and value."""

    exit_status: ClassVar[int] = 2


def load_driver(driver: str, beside: Path) -> System:
    """The `SYSTEM` of a driver: a module by its dotted name, or a file beside the configuration.

    Raises:
        WrongDriver: there is none.
    """
    try:
        module = _of_file(beside.parent / driver) if driver.endswith(".py") else _by_name(driver)
    except (ImportError, OSError, SyntaxError) as error:
        raise WrongDriver(f"{beside}: driver = {driver!r}: {error}") from error
    system = getattr(module, "SYSTEM", None)
    if not isinstance(system, System):
        raise WrongDriver(f"{beside}: driver = {driver!r} has no SYSTEM in it")
    return system


def _by_name(driver: str) -> ModuleType:
    return importlib.import_module(driver)


def _of_file(path: Path) -> ModuleType:
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None, path
    assert found.loader is not None, path
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
