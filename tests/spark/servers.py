"""Spark's own processes, as an installation of several machines has them: servers, a wheel, a worker's venv.

A server says in its log when it is there and where; nobody looks twice. Everything listens on loopback, on
ports that the system gives, and is gone in the end.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

CLONE = Path(__file__).resolve().parents[2]
START_SECONDS = 240
RUN_SECONDS = 400
STOP_SECONDS = 30
INSTALL_SECONDS = 1_500
LOOPBACK = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_NO_DAEMONIZE": "1",
    # None of them lives long enough to be worth a better translation.
    "JAVA_TOOL_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}
SMALL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "768m",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # On a busy machine a Python process takes its time to come.
    "spark.python.authenticate.socketTimeout": "120s",
}


def spark_home() -> Path:
    """Where pip has put Spark."""
    import pyspark

    return Path(pyspark.__file__).parent


def options(settings: Mapping[str, str]) -> list[str]:
    """Settings as the words of spark-submit."""
    return [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]


def environment(python: str = sys.executable, path: Sequence[str] = ()) -> dict[str, str]:
    """What a process of Spark sees: no package but those of its Python, and of the folders that are named."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    kept.pop("PYTHONPATH", None)
    found = {**kept, **LOOPBACK, "SPARK_HOME": str(spark_home()), "PYSPARK_PYTHON": python}
    return {**found, "PYTHONPATH": os.pathsep.join(path)} if path else found


def source_environment() -> dict[str, str]:
    """The package as the tests themselves see it."""
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return environment(path=[str(CLONE / "src"), *inherited])


def _inside(env: Mapping[str, str], folder: Path) -> dict[str, str]:
    """With everything that is left behind in this folder."""
    temporary = folder / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    java = f"{env.get('JAVA_TOOL_OPTIONS', '')} -Djava.io.tmpdir={temporary}"
    return {**env, "TMPDIR": str(temporary), "JAVA_TOOL_OPTIONS": java}


# --- servers -----------------------------------------------------------------------------------------------


class Server:
    """A process of Spark."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str], folder: Path, sign: str) -> None:
        self._log = folder / "log"
        self._sign = re.compile(sign)
        self._met = threading.Event()
        self.said = ""
        """What the sign has in its group."""
        self.popen = subprocess.Popen(
            words,
            cwd=folder,
            env=_inside(env, folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        with self._log.open("w", encoding="utf-8") as log:
            for line in self.popen.stdout:
                log.write(line)
                log.flush()
                found = self._sign.search(line)
                if found and not self.said:
                    self.said = found[1]
                    self._met.set()
        self._met.set()

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def wait(self) -> str:
        """Wait until it is there; returns where."""
        assert self._met.wait(START_SECONDS), f"it does not come:\n{self.log[-3000:]}"
        assert self.said, f"it has ended:\n{self.log[-3000:]}"
        return self.said

    def stop(self) -> None:
        """End it and what it has started: whoever can still write to its log is not gone."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.popen.pid, number)
            self._reader.join(STOP_SECONDS)
        self.popen.wait()
        assert self.popen.stdout is not None
        self.popen.stdout.close()


@contextlib.contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """A Spark Connect server with two threads; its address for clients."""
    settings = {
        **SMALL,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    words = ["bash", str(spark_home() / "sbin/start-connect-server.sh"), "--master", "local[2]"]
    sign = r"Spark Connect server started at: (127\.0\.0\.1:\d+)"
    server = Server([*words, *options(settings)], source_environment(), folder, sign)
    try:
        yield f"sc://{server.wait()}"
    finally:
        server.stop()


@contextlib.contextmanager
def standalone(folder: Path, workers: int = 2) -> Iterator[str]:
    """A standalone master and workers with a core each, which know nothing of this clone; its URL."""
    env = {**environment(), "SPARK_DAEMON_MEMORY": "256m"}
    deploy, where = "org.apache.spark.deploy", ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    started = [str(spark_home() / "bin/spark-class")]
    sign = r"Starting Spark master at (spark://127\.0\.0\.1:\d+)"
    servers = [Server([*started, f"{deploy}.master.Master", *where], env, folder / "master", sign)]
    try:
        master = servers[0].wait()
        for number in range(workers):
            place = folder / f"worker{number}"
            size = ["--cores", "1", "--memory", "512m", "--work-dir", str(place / "work")]
            words = [*started, f"{deploy}.worker.Worker", *where, *size, master]
            servers.append(Server(words, env, place, r"Successfully registered with master (\S+)"))
        for server in servers[1:]:
            server.wait()
        yield master
    finally:
        for server in reversed(servers):
            server.stop()


# --- programs ----------------------------------------------------------------------------------------------


def run(words: Sequence[str], env: Mapping[str, str], folder: Path) -> str:
    """Run a program to its end; returns what it wrote, and shows everything if it fails."""
    env = _inside(env, folder)
    done = subprocess.run(
        words, env=env, cwd=folder, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
    )
    said = f"{words[0]} ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert done.returncode == 0, said
    return done.stdout


def submit(*words: str) -> list[str]:
    """A call of spark-submit."""
    return [str(spark_home() / "bin/spark-submit"), *options(SMALL), *words]


def wheel(folder: Path) -> Path:
    """Our wheel, with the compiled modules that are there; nothing is left in the clone."""
    base = ["egg_info", "--egg-base", str(folder), "build", "--build-base", str(folder / "build")]
    made = ["bdist_wheel", "--bdist-dir", str(folder / "bdist"), "--dist-dir", str(folder / "dist")]
    env = {**os.environ, "MIRRORMQ_KERNEL": "built"}
    words = [sys.executable, "setup.py", "-q", *base, *made]
    subprocess.run(words, cwd=CLONE, env=env, check=True, capture_output=True, timeout=RUN_SECONDS)
    (found,) = (folder / "dist").glob("mirrormq-*.whl")
    return found


def wheel_python(folder: Path) -> str:
    """The Python of a venv that was made from our wheel with its extra for Spark, and from nothing else.

    pip brings what the wheel asks for, 900 MB of it, from its cache or the package index.
    """
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    python = folder / "venv/bin/python"
    words = [str(python), "-m", "pip", "install", "-q", "--no-compile", f"{wheel(folder)}[spark]"]
    subprocess.run(words, check=True, env=environment(), timeout=INSTALL_SECONDS)
    return str(python)


def worker_python(folder: Path) -> str:
    """The Python of a venv that has our wheel and, from the tests' own, what the wheel asks for.

    A path file leads there. It does not lead to the package in the clone: path files are not read in turn.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    python = folder / "venv/bin/python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index"]
    words = [*pip, "--no-compile", "--disable-pip-version-check", str(wheel(folder))]
    subprocess.run(words, check=True, env=environment(), timeout=RUN_SECONDS)
    site = next((folder / "venv/lib").glob("python*/site-packages"))
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return str(python)
