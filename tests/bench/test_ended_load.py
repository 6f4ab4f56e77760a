"""A story about the end of the load at the controller."""

from typing import Any

import trio

from bench.run.coordinator import _Experiment


class BriefExperiment(_Experiment):
    """A run whose parts record their calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def _write_partial_records(self) -> None:
        self.calls.append("begin")

    async def _prepare(self) -> None:
        self.calls.append("prepare")

    async def _sample_brokers(self) -> None:
        await trio.sleep_forever()

    async def _load_and_break(self) -> None:
        self.calls.append("load")

    async def _processor_seconds(self) -> dict[str, float]:
        self.calls.append("sample")
        return {}

    async def _conclude(self, state: Any, reason: str = "") -> Any:
        self.calls.append(state)


def test_brokers_are_sampled_once_more_after_the_load() -> None:
    """A sample announces the run to brokers that were restarted since the last one."""
    experiment = BriefExperiment()
    trio.run(experiment.run)
    assert experiment.calls == ["begin", "prepare", "load", "sample", "complete"]
