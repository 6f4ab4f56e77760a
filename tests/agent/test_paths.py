"""Tests of the files of an agent: for its user alone, and below its root."""

import stat
from pathlib import Path

import pytest

from brokerd.agent.paths import AgentPaths
from brokerd.errors import ConfigError


def test_the_folders_of_an_agent_are_for_its_user_alone(tmp_path: Path) -> None:
    paths = AgentPaths(tmp_path / "a" / "root")
    for _ in range(2):
        paths.make()
        for folder in (paths.root, paths.folder, paths.processes, paths.leases):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder
    with pytest.raises(ConfigError, match="an agent's root must be an absolute path"):
        AgentPaths(Path("root")).make()


def test_a_path_must_be_below_the_root_whatever_its_links_and_dots_say(tmp_path: Path) -> None:
    paths = AgentPaths(tmp_path / "root")
    paths.make()
    (tmp_path / "secret").mkdir()
    (paths.root / "way").symlink_to(tmp_path / "secret")
    (paths.root / "inner").symlink_to(paths.folder)
    assert paths.resolve_inside("b1/log") == paths.root / "b1" / "log"
    assert paths.resolve_inside(str(paths.root / "b1")) == paths.root / "b1"
    assert paths.resolve_inside("inner/x") == paths.folder / "x"
    assert paths.resolve_inside(".") == paths.root
    for outside in ("../secret", "way/x", "b1/../../secret", str(tmp_path), "/etc/passwd"):
        with pytest.raises(ConfigError, match="not below"):
            paths.resolve_inside(outside)


def test_each_file_of_an_agent_has_a_place_of_its_own(tmp_path: Path) -> None:
    paths = AgentPaths(tmp_path)
    files = [paths.journal, paths.log, paths.lock, paths.announcement, paths.processes]
    files += [paths.leases, paths.process_file("b1"), paths.process_file("b2")]
    assert len({*files}) == len(files)
    assert all(path.is_relative_to(paths.folder) for path in files)
