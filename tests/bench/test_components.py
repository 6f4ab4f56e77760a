"""Tests of measurements of single parts: the measured part is the reported part."""

import json
import subprocess
import sys

import pytest

from bench import components
from bench.components import MEASURES
from bench.papers.dft11.simulator_speed import Speed
from bench.run.expectations import COMPONENTS
from brokerd.wire.attributes import encode_attributes


def test_each_of_them_can_be_measured() -> None:
    assert tuple(MEASURES) == COMPONENTS


@pytest.mark.parametrize("subscriptions", [10, 100])
def test_each_publication_matches_one_subscription(subscriptions: int) -> None:
    memo = components.memo_of(subscriptions)
    for price, tenth in ((0, 0), (9, 0), (10, 1), (99, 9)):
        symbol = 3 % (subscriptions // 10)
        blob = encode_attributes({"symbol": f"S{symbol}", "price": price, "serial": price})
        assert memo.match(blob) == (symbol * 10 + tenth,)


def test_the_simulator_is_as_fast_as_its_slowest_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    phases = [Speed("a", 300, 1.0), Speed("b", 200, 1.0), Speed("checked", 100, 1.0)]
    monkeypatch.setattr(components, "measure_speed", lambda: phases)
    assert components.measure_simulator() == {"events_per_s": 200}


def test_the_command_prints_numbers() -> None:
    code = (
        "from bench import components; components.MEASURES = {'matching': lambda: {'a': 1.5}}\n"
        "components.main()"
    )
    command = [sys.executable, "-c", code, "matching"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    assert json.loads(done.stdout) == {"a": 1.5}
