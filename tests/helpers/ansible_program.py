"""The installed `ansible-inventory`, run once for many inventories.

The program is found by PUBSUBCTL_ANSIBLE_INVENTORY or in PATH. The start takes longer than all
inventories, so a single process of the interpreter loads the program and forks for each inventory.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VARIABLE = "PUBSUBCTL_ANSIBLE_INVENTORY"
_LIST_ALL = """
import os, sys
from ansible.cli.inventory import InventoryCLI

try:  # loaded once here rather than in each fork
    from ansible.plugins import loader

    loader.init_plugin_loader()
    for name in ("host_list", "script", "auto", "yaml", "ini", "toml"):
        loader.inventory_loader.get(name)
except Exception:
    pass  # another version of Ansible loads its plugins in each fork

for source in sys.argv[1:]:
    if os.fork() != 0:
        os.wait()
        continue
    try:
        InventoryCLI(
            ["ansible-inventory", "-i", source, "--list", "--output", source + ".listed"]
        ).run()
    except SystemExit:
        pass
    except Exception as error:
        with open(source + ".refused", "w") as file:
            file.write(repr(error))
    finally:
        os._exit(0)
"""


def interpreter() -> str | None:
    """Return the Python of the installed program, or None if none is installed."""
    program = os.environ.get(VARIABLE) or shutil.which("ansible-inventory")
    if not program or not Path(program).is_file():
        return None
    first = Path(program).read_bytes()[:512].split(b"\n")[0].decode("utf-8", "replace")
    words = first.removeprefix("#!").split()
    return words[0] if len(words) == 1 and "python" in words[0] else None


def list_by_ansible(
    python: str, folder: Path, texts: Mapping[str, str], beside: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return file name → the listing of an inventory, or the text of the program's refusal.

    `beside` has the texts of further files.
    """
    folder = folder.resolve()
    for name, text in {**texts, **(beside or {})}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    environment = {
        **os.environ,
        "ANSIBLE_HOME": str(folder),
        "ANSIBLE_LOCAL_TEMP": str(folder),
        "ANSIBLE_CONFIG": str(folder / "none.cfg"),
        "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true",
        "ANSIBLE_DEPRECATION_WARNINGS": "false",
    }
    (folder / "none.cfg").write_text("[defaults]\n")
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [python, "-c", _LIST_ALL, *(str(folder / name) for name in texts)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = {}
    for name in texts:
        refused = folder / f"{name}.refused"
        if refused.exists():
            found[name] = refused.read_text()
        else:
            found[name] = json.loads((folder / f"{name}.listed").read_text())
    return found
