"""Tests of the bundle for hosts, which excludes simulator, checks and named bugs."""

import io
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

from pubsubctl.deployment.bundle import build_own_wheel

IMPORT_ALL = """
import importlib, pathlib, sys
root = pathlib.Path(sys.argv[1])
sys.path[:0] = sys.argv[1:]
for path in sorted(root.rglob("*.py")):
    name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    if not name.endswith("__main__"):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as missing:
            if missing.name != "brokerd.simulator":
                raise
        else:
            assert module.__file__.startswith(str(root)), module.__file__
print("all")
"""


def imported_from(root: Path) -> "subprocess.CompletedProcess[str]":
    """Import the bundle in isolation, without the links of this installation to the sources."""
    packages = sysconfig.get_path("purelib")
    command = [sys.executable, "-I", "-S", "-c", IMPORT_ALL, str(root), packages]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_wheel_of_hosts_imports_by_itself(tmp_path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(build_own_wheel())) as wheel:
        wheel.extractall(tmp_path)
    done = imported_from(tmp_path)
    assert (done.returncode, done.stdout) == (0, "all\n"), done.stderr
    rooms = {path.parts[len(tmp_path.parts) :][-2:] for path in tmp_path.rglob("*.py")}
    assert not [room for room in rooms if "checks" in room]
    (tmp_path / "results" / "rules" / "terms.py").unlink()
    assert "No module named 'results.rules.terms'" in imported_from(tmp_path).stderr
