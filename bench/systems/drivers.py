"""Loader of drivers, and calls of their functions."""

import importlib
import importlib.util
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import ClassVar, ParamSpec, TypeVar

from bench.systems.boundary import System
from brokerd.errors import BrokerError, ConfigError

P = ParamSpec("P")
T = TypeVar("T")


class WrongDriver(ConfigError):
    """A missing or failing driver in a configuration; names file, key, value and line."""

    exit_status: ClassVar[int] = 2


def load_driver(driver: str, beside: Path) -> System:
    """Return the `SYSTEM` of a driver: a module name, or a file beside the configuration.

    Raises:
        WrongDriver: there is no `SYSTEM`.
    """
    try:
        module = (
            _load_file(beside.parent / driver) if driver.endswith(".py") else _load_by_name(driver)
        )
    except (ImportError, OSError, SyntaxError) as error:
        raise WrongDriver(f"{beside}: driver = {driver!r}: {error}") from error
    except Exception as error:
        where = _line_of(error, str((beside.parent / driver).absolute()))
        raise WrongDriver(f"{beside}: driver = {driver!r}: {where}{_words(error)}") from error
    system = getattr(module, "SYSTEM", None)
    if not isinstance(system, System):
        raise WrongDriver(f"{beside}: driver = {driver!r} does not define SYSTEM")
    return system


def call_driver(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call a function of a driver, and return the result.

    Raises:
        WrongDriver: the function fails with an exception outside the boundary; names the place.
    """
    try:
        return function(*arguments, **named)
    except BrokerError:
        raise
    except Exception as error:
        code = getattr(function, "__code__", None)
        file = code.co_filename if code is not None else ""
        name = getattr(function, "__qualname__", "the driver")
        raise WrongDriver(f"{file}: {name}: {_line_of(error, file)}{_words(error)}") from error


def _line_of(error: Exception, file: str) -> str:
    """Return the last line of this file in the traceback of an error."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    return f"line {lines[-1]}: " if lines else ""


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _load_by_name(driver: str) -> ModuleType:
    return importlib.import_module(driver)


def _load_file(path: Path) -> ModuleType:
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None, path
    assert found.loader is not None, path
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
