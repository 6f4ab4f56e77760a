"""Settings, start and end of Spark sessions; the only module with Spark settings.

PySpark is imported inside the functions, because its import takes longer than most commands, and
`pubsubctl --help` must not wait for the import.
"""

import logging
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import resources
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from results.checker.cluster import check_master, check_workers, cluster_settings
from results.checker.java import find_java, spark_environment, without_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JVM_EXIT_SECONDS = 30
HOSTS_FILE = "hosts"
"""Names of a local session's Java process, below its scratch folder; Java asks no name server."""
SMALL_ROWS = 300_000
SMALL_PLANS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
    # With a single partition, joins and groups need no shuffle, which is a stage of its own.
    "spark.sql.leafNodeDefaultParallelism": "1",
    # Filters that follow from others save rows, and their search is a third of such a plan's time.
    "spark.sql.constraintPropagation.enabled": "false",
}


LARGE_ROWS = 20_000_000
LARGE_PLANS = {
    # A table of twenty million publications has small files, because consecutive numbers are stored
    # compactly. By this size Spark would broadcast the table to every task.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.autoBroadcastJoinThreshold": "-1",
}


class SparkAlreadyRunning(RuntimeError):
    """A second session in a process with a session; Spark would return the first session."""


class TooLittleMemory(Exception):
    """Spark's process lacks the memory for one of its tasks."""

    exit_status = 4


class SparkFailed(Exception):
    """A failure of Spark, in its own words."""


class NoLocalhost(Exception):
    """This machine does not know the name `localhost`, which Spark and Java need."""

    exit_status = 6


class JavaNotStarted(Exception):
    """Java ended before Spark had started."""

    exit_status = 6


def check_localhost() -> None:
    """Check that the name `localhost` has an address.

    Raises:
        NoLocalhost: it has none; names the line that /etc/hosts needs.
    """
    try:
        socket.getaddrinfo("localhost", None)
    except OSError:
        raise NoLocalhost(
            "the name localhost has no address on this machine, and Spark needs one; add the line "
            "`127.0.0.1 localhost` to /etc/hosts"
        ) from None


def translate_errors(error: Exception) -> Exception:
    """Return an error of this module for Java's, which loses its words with its process."""
    from py4j.protocol import Py4JError
    from pyspark.errors.exceptions.captured import CapturedException

    try:
        words = str(error)
    except Exception:  # any failure of a request to a dead process
        words = "its Java process has ended"
    if any(sign in words for sign in ("OutOfMemory", "Could not allocate memory")):
        return TooLittleMemory(
            f"Spark ran out of memory, of which its process here has {_heap_mebibytes()} MiB; "
            "`pubsubctl spark up --memory` starts workers with more"
        )
    return SparkFailed(words) if isinstance(error, Py4JError | CapturedException) else error


@contextmanager
def interruptible(end_work: Callable[[], object]) -> Iterator[None]:
    """Make sure that a Ctrl-C inside the block ends the block with KeyboardInterrupt.

    Libraries lose the exception of Ctrl-C: finalizers swallow it, and cleanups on a broken
    connection replace it. So the first Ctrl-C ends the work as well, each later error of the block
    becomes KeyboardInterrupt, and further signals are ignored until the block has ended. Has no
    effect in other threads, and where another handler than Python's own is installed.

    Args:
        end_work: makes all further work of the block fail.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    received: list[int] = []

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:
            end_work()
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    except Exception as error:
        if received:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if received:
        raise KeyboardInterrupt


@contextmanager
def spark_session(app_name: str, master: str = "local[*]") -> "Iterator[SparkSession]":
    """Yield a Spark session that ends with the block, together with its Java process.

    One session per command: the start takes seconds. With a local master the session listens on
    loopback only, answers only to its own processes, and keeps spilled data in a private folder
    that is removed. Times are UTC, conversions use Arrow.

    Args:
        app_name: shown by cluster masters, otherwise unused.
        master: `local[N]`, `local[*]`, or the URL of a cluster of machines with the same Python and
            this package.

    Raises:
        JavaNotFound: no Java can run Spark.
        FolderNotExecutable: the folder for temporary files is unsuitable; see TMPDIR.
        SparkAlreadyRunning: this process has a session already.
        NoLocalhost: the name `localhost` has no address.
        JavaNotStarted: Java ended before Spark had started.
        NoMaster, MasterRefused: the master does not exist, or its workers cannot run this program.
    """
    check_master(master)
    check_localhost()
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        raise SparkAlreadyRunning("this process has a Spark session already; pass that one on")
    java = find_java()
    scratch = Path(tempfile.mkdtemp(prefix="pubsubctl-spark-"))  # mode 0700
    # Without a network, each request for this machine's name would wait for a name server.
    (scratch / HOSTS_FILE).write_text(f"127.0.0.1 localhost {socket.gethostname()}\n")
    log4j_file = resources.files("results") / "log4j2.properties"
    try:
        with interruptible(_kill_java), resources.as_file(log4j_file) as log4j_path:
            conf = SparkConf(loadDefaults=False)
            conf.setAll([*spark_settings(app_name, master, scratch, log4j_path).items()])
            on_interrupt = signal.getsignal(signal.SIGINT)
            in_order = False
            restored = ExitStack()
            # py4j logs raised errors at the root logger; without a handler, the log is printed.
            unheard = logging.NullHandler()
            logging.getLogger().addHandler(unheard)
            try:
                of_cluster = cluster_settings(master)
                conf.setAll([*of_cluster.items()])
                variables = spark_environment(java, scratch)
                if of_cluster:
                    variables["SPARK_LOCAL_IP"] = of_cluster["spark.driver.host"]
                restored.enter_context(own_environment(variables))
                # The context keeps settings of an earlier session out of this session; the
                # session's builder stores them.
                try:
                    spark = SparkSession(SparkContext(conf=conf))
                except PySparkException as error:
                    raise JavaNotStarted(
                        f"{java.executable} ended before Spark had started ({error}); "
                        "`pubsubctl doctor` checks memory, Java and names of this machine"
                    ) from error
                if threading.current_thread() is threading.main_thread():
                    signal.signal(signal.SIGINT, on_interrupt)  # PySpark would ask Java first
                check_workers(spark, master)
                yield spark
                in_order = True
            except Exception:
                in_order = True
                raise
            finally:
                _stop_java(in_order=in_order)
                restored.close()
                logging.getLogger().removeHandler(unheard)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def plan_for(spark: "SparkSession", rows: int) -> Iterator[bool]:
    """Plan queries for about this number of rows inside the block; yield True for a small number.

    Spark's work for large tables (generated code, adaptive stages, distributed shuffles) takes
    seconds, which is the whole time of small queries. For very many rows, only explicitly broadcast
    tables are held by every task.
    """
    small = rows < SMALL_ROWS
    settings = SMALL_PLANS if small else LARGE_PLANS if rows >= LARGE_ROWS else {}
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield small
    finally:
        for name, former in before.items():
            if former is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, former)


def spark_settings(app_name: str, master: str, scratch: Path, log4j_path: Path) -> dict[str, str]:
    """Return every setting that differs from Spark's own defaults."""
    java_options = (
        # Jobs are short, so fast compilation is better than optimized code.
        "-XX:TieredStopAtLevel=1",
        # With this option, Java reserves a fifth of its usual code cache. A long check fills the
        # cache, and Java then stops compiling and prints a warning on the terminal.
        "-XX:ReservedCodeCacheSize=240m",
        # Otherwise Java searches for garbage each time that the loaded classes have grown.
        "-XX:MetaspaceSize=256m",
        # Classes were installed with hashes; a repeated verification takes a fifth of a start.
        "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions",
        "-XX:-BytecodeVerificationRemote",
        *_collector(),
        f'"-Djava.io.tmpdir={scratch}"',
        f'"-Dlog4j2.configurationFile={log4j_path.as_uri()}"',
        # Log4j's own errors would be printed on the terminal: a stack trace if the name of this
        # machine has no address.
        "-Dlog4j2.statusLoggerLevel=OFF",
    )
    settings = {
        "spark.app.name": app_name,
        "spark.master": master,
        "spark.driver.extraJavaOptions": " ".join(java_options),
        "spark.driver.memory": f"{_heap_mebibytes()}m",
        # The default is 64 MiB for each sort of a task and each broadcast table, which Java clears,
        # copies and keeps: most of the memory and a fifth of the time of a small check.
        "spark.buffer.pageSize": "4m",
        # Otherwise each column records its source line, in twelve messages to Java.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # Otherwise each column records a stack trace, each rewritten plan is verified, and each
        # query has a long description, which nothing shows.
        "spark.sql.dataFrameQueryContext.enabled": "false",
        "spark.sql.lightweightPlanChangeValidation": "false",
        "spark.sql.ui.explainMode": "simple",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Otherwise rows are sorted by partition before they are written.
        "spark.sql.maxConcurrentOutputFileWriters": "64",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    if master.startswith("local"):
        hosts_option = f'"-Djdk.net.hosts.file={scratch / HOSTS_FILE}"'
        settings |= {
            "spark.driver.extraJavaOptions": " ".join((*java_options, hosts_option)),
            "spark.authenticate": "true",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": str(scratch),
            # The default of 200 tasks per shuffle is meant for clusters.
            "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        }
    return settings


def _collector() -> tuple[str, ...]:
    """Return the garbage collector; concurrent ones cost a sixth more on up to two cores."""
    return ("-XX:+UseSerialGC",) if (os.cpu_count() or 1) <= 2 else ()


def _heap_mebibytes() -> int:
    """Return a quarter of the memory, so that running brokers keep their memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(max(memory // 4 // 2**20, 1024), 8192)


@contextmanager
def own_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Replace all variables of Spark and Hadoop by these inside the block, and restore them."""
    before = dict(os.environ)
    kept = without_spark(before)
    for name in before.keys() - kept.keys():
        del os.environ[name]
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            if name in variables or name not in without_spark({name: ""}):
                del os.environ[name]
        os.environ.update(before)


def _kill_java() -> None:
    """Kill the Java process, if there is one, so that no request to Java succeeds."""
    from pyspark import SparkContext

    if SparkContext._gateway is not None:
        SparkContext._gateway.proc.kill()


def _stop_java(*, in_order: bool) -> None:
    """Stop Spark and wait until its Java process has ended.

    PySpark leaves the process to end by itself some time after the session, and would pass the
    process, with its settings, to the next session.

    Args:
        in_order: True if Spark may clean up; otherwise, or after a failed cleanup, the process is
            killed.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway, context = SparkContext._gateway, SparkContext._active_spark_context
    try:
        if in_order and (
            session := SparkSession.getActiveSession() or SparkSession._instantiatedSession
        ):
            session.stop()
        elif in_order and context is not None:
            context.stop()
        if in_order and gateway is not None:
            gateway.shutdown()
    except Exception:  # of any kind: the process is dead already, or must end now
        in_order = False
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    if gateway is None:
        return
    java: subprocess.Popen[bytes] = gateway.proc
    if not in_order:
        if context is not None and context._accumulatorServer is not None:
            context._accumulatorServer.shutdown()  # avoids an error after the end of Java
        java.kill()
    if java.stdin is not None:
        java.stdin.close()  # the sign for the Java side to end
    try:
        java.wait(JVM_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()
