"""Tests of refusals of masters and hosts before a Java process starts."""

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from pubsubctl.runs.spark_cluster import problems_of
from results.checker import cluster_host
from results.checker.cluster import (
    MasterRefused,
    NoMaster,
    _explain,
    check_master,
    cluster_file,
    cluster_settings,
)
from results.checker.spark import spark_session

GOOD = {"python": "3.11.7", "pyspark": "4.3.0", "java": 17, "settings": True, "writable": True}


@pytest.mark.parametrize("master", ["yarn", "local[0]", "spark://n01", "spark://a:1,b:2", ""])
def test_an_invalid_master_is_refused_with_the_valid_forms(master: str) -> None:
    with pytest.raises(NoMaster, match=r"local\[N\], local\[\*\], or the spark://HOST:PORT"):
        check_master(master)
    for good in ("local", "local[2]", "local[*]"):
        check_master(good)


def test_an_unreachable_master_is_reported_before_java_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        check_master(f"spark://127.0.0.1:{port}")
    with (
        pytest.raises(
            MasterRefused, match=r"no Spark master at .*refused; `pubsubctl spark status`"
        ),
        spark_session("never", f"spark://127.0.0.1:{port}"),
    ):
        pass


def test_a_port_that_no_process_can_have_is_refused_like_one_without_a_master() -> None:
    with pytest.raises(MasterRefused, match=r"no Spark master at spark://127\.0\.0\.1:99999"):
        check_master("spark://127.0.0.1:99999")


@pytest.mark.parametrize(
    "facts, why",
    [
        ({**GOOD, "python": "3.12.1"}, "host n2: Python 3.12.1, here 3.11.7; all of a cluster"),
        ({**GOOD, "pyspark": ""}, "host n2: PySpark is missing, here 4.3.0"),
        ({**GOOD, "java_refused": "Spark needs Java"}, "host n2: Spark needs Java"),
        ({**GOOD, "folder_refused": "No such file or directory"}, "n2: /runs: No such file"),
        (
            {**GOOD, "settings": False},
            "files of this machine are not visible there; workers read runs",
        ),
        ({"nothing": "env: python: not found"}, "it cannot run this program (env: python: not"),
    ],
)
def test_an_unsuitable_host_is_reported_with_the_reason(facts: dict[str, Any], why: str) -> None:
    assert problems_of({"n1": GOOD}, GOOD, Path("/runs")) == []
    (problem,) = problems_of({"n1": GOOD, "n2": facts}, GOOD, Path("/runs"))
    assert why in problem


@pytest.mark.parametrize(
    "said, over, why",
    [
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in "
         "driver: 3.11, PySpark cannot run", False, "have another Python (3.12) than this"),
        ("ModuleNotFoundError: No module named 'results'", False, "its workers have no results;"),
        ("Job 0 cancelled as part of cancellation of all jobs", True, "no worker took any work"),
        ("a\nSomething else", False, "its workers cannot do our work: Something else"),
    ],
)  # fmt: skip
def test_a_failure_of_workers_is_explained_in_one_sentence(said: str, over: bool, why: str) -> None:
    assert why in _explain(said, over=over)


def test_a_session_uses_the_secret_of_its_own_cluster_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    master = "spark://127.0.0.1:7077"
    assert "spark.authenticate.secret" not in cluster_settings(master)
    path = cluster_file(master)
    assert path.is_relative_to(tmp_path)
    path.parent.mkdir(parents=True)
    about = {"settings": {"spark.authenticate.secret": "s"}, "memory": "2g", "cores": 6}
    path.write_text(json.dumps(about))
    found = cluster_settings(master)
    assert found["spark.authenticate.secret"] == "s"
    assert found["spark.executor.memory"] == "2g"
    assert found["spark.sql.shuffle.partitions"] == "12"
    assert found["spark.driver.host"] == "127.0.0.1"
    assert cluster_settings("local[2]") == {}


def test_a_host_reports_its_facts_and_ends_no_foreign_process(tmp_path: Path) -> None:
    found = cluster_host.facts(tmp_path)
    assert (found["settings"], found["writable"]) == (False, True)
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "folder_refused" in cluster_host.facts(tmp_path / "nowhere")
    row = tmp_path / "worker-n1.json"
    row.write_text(json.dumps({"pid": os.getpid(), "began": 1, "scratch": str(tmp_path)}))
    assert cluster_host.status(tmp_path, "worker-n1") == {}, "its number is another process's now"
    assert cluster_host.stop(tmp_path, "worker-n1") == {"changed": False}
    assert tmp_path.is_dir()
    assert not row.exists()
