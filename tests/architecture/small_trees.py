"""Source trees for tests of the checker, and complaints about findings in the product."""

from pathlib import Path

from tests.helpers.architecture import (
    Finding,
)

ROOT = Path(__file__).parents[2]


def complain(findings: list[Finding]) -> None:
    assert not findings, "\n" + "\n".join(map(str, findings))


def plant(root: Path, sources: dict[str, str]) -> Path:
    """Write modules, given by dotted name, and all necessary `__init__` files."""
    for name, source in sources.items():
        path = root.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
        for parent in path.relative_to(root).parents[:-1]:
            (root / parent / "__init__.py").touch()
    return root
