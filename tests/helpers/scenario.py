"""Player of scenario files, which record the expected behaviour of brokers."""

from pathlib import Path

from brokerd.simulator.scenario import play_scenario


def scenario_files(test_file: str) -> list[Path]:
    """Return the scenarios beside a test file; at least one."""
    files = sorted(Path(test_file).parent.joinpath("scenarios").glob("*.txt"))
    assert files, f"no scenarios beside {test_file}"
    return files


def play(path: Path, rewrite: bool) -> None:
    """Play a scenario; with `rewrite` record the present behaviour in the file instead."""
    told = path.read_text(encoding="utf-8")
    seen = play_scenario(told)
    if rewrite:
        path.write_text(seen, encoding="utf-8")
    else:
        assert seen.splitlines() == told.splitlines(), f"{path.name} tells another story"
