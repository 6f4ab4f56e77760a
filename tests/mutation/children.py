"""Changed modules in the processes that a story starts.

A story may run a module in brokers, agents and commands alone. Such processes are new interpreters,
or forks of one, and import the module from its file. `Children` writes the changed source of the
module to a folder with a `sitecustomize.py`, and puts the folder into PYTHONPATH, which processes
inherit. That module (`IMPORT`) replaces the source at its import.

Blocks that such a process runs are appended to a file, each once and at once: many processes end by
a signal.
"""

import ast
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.mutation.mutants import Block, Mutant, read_source, source_of_mutant, source_with_records

REACHED: Final = "reached.jsonl"
IMPORT: Final = '''
"""Import the modules of this folder in place of those of the same name."""
import json
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path

FOLDER = Path(__file__).parent


class Reached(set):
    """The executed blocks of a module, which are appended to a file."""

    def __init__(self, module):
        super().__init__()
        self._module = module

    def add(self, block):
        if block in self:
            return
        super().add(block)
        line = json.dumps([self._module, *block]) + "\\n"
        try:
            file = os.open(FOLDER / "reached.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError:
            return  # the trial has ended
        os.write(file, line.encode())
        os.close(file)


class _Loader(SourceFileLoader):
    def get_code(self, fullname):
        text = (FOLDER / f"{fullname}.changed").read_text(encoding="utf-8")
        return compile(text, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if not (FOLDER / f"{fullname}.changed").exists():
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin)
        return spec


sys.meta_path.insert(0, _Finder())
'''


class Children:
    """A folder of changed modules, which processes import in place of the modules."""

    def __init__(self, folder: Path) -> None:
        self._path = folder
        (self._path / "sitecustomize.py").write_text(IMPORT, encoding="utf-8")

    def plant(self, mutant: Mutant) -> None:
        """Let processes that this process starts from now on import the module with a mutant."""
        self._write({mutant.module: ast.unparse(source_of_mutant(mutant).tree)})

    def record(self, modules: list[str]) -> None:
        """Let processes that this process starts from now on record the blocks of modules."""
        texts = {}
        for module in modules:
            is_future = any(
                isinstance(each, ast.ImportFrom) and each.module == "__future__"
                for each in read_source(module).tree.body
            )
            assert not is_future, f"{module}: an import of the future is first"
            begin = f"import sitecustomize; __reached__ = sitecustomize.Reached({module!r})"
            texts[module] = f"{begin}\n{ast.unparse(source_with_records(module).tree)}"
        self._write(texts)

    def take_reached(self) -> set[tuple[str, Block]]:
        """Return the blocks that processes recorded since the last call."""
        path = self._path / REACHED
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return {(module, (line, column)) for module, line, column in map(json.loads, lines)}

    def _write(self, texts: Mapping[str, str]) -> None:
        for old in self._path.glob("*.changed"):
            old.unlink()
        for module, text in texts.items():
            name = module.removesuffix(".py").replace("/", ".")
            (self._path / f"{name}.changed").write_text(text, encoding="utf-8")
        kept = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
        if str(self._path) not in "".join(kept):
            os.environ["PYTHONPATH"] = os.pathsep.join([str(self._path), *kept])
