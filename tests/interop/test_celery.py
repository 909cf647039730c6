"""A Celery application with real workers: chain, group, chord, retry, ETA, revoke, late acks after a kill."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, chord, group

from tests.interop import celery_app as tasks
from tests.interop.brokers import Broker
from tests.interop.waiting import until

ROOT = Path(__file__).resolve().parents[2]
WORKER_S = 45.0


class Bench:
    """An application bound to the broker under test, the folder it shares with workers, and its workers."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        (folder / "results").mkdir()
        self.app: Celery = tasks.make_app(broker.url, folder)

    def signature(self, task: Any, *arguments: Any, **options: Any) -> Any:
        """A call of `task` by its name, so that it goes through this application and not the workers' one."""
        return self.app.signature(task.name, args=arguments, options=options)

    @contextlib.contextmanager
    def worker(self, queue: str, concurrency: int = 2) -> Iterator[subprocess.Popen[bytes]]:
        """A worker process that answers pings; killed with all its children at the end."""
        name = f"{queue}-{time.monotonic_ns()}@interop"
        log = self.folder / f"{name}.log"
        environment = os.environ | {
            "INTEROP_CELERY_BROKER": self.broker.url,
            "INTEROP_CELERY_FOLDER": str(self.folder),
            "PYTHONPATH": str(ROOT),
        }
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "tests.interop.celery_app",
            "worker",
            "-Q",
            queue,
            "-n",
            name,
            "-c",
            str(concurrency),
            "-l",
            "INFO",
            "-f",
            str(log),
        ]
        if queue != "celery":
            command += [
                "--without-mingle",
                "--without-gossip",
            ]  # one worker is enough to show them; they cost a second
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            until(lambda: self._ready(process, log), f"worker {name} is ready", WORKER_S)
            yield process
        finally:
            kill_group(process)

    @staticmethod
    def _ready(process: subprocess.Popen[bytes], log: Path) -> bool:
        text = log.read_text() if log.exists() else ""
        assert process.poll() is None, f"the worker ended:\n{text}"
        return " ready." in text

    def traces(self, name: str) -> list[str]:
        return tasks.traces(self.folder, name)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def bench(module_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(module_broker, tmp_path_factory.mktemp("celery"))
    yield made
    made.app.close()


@pytest.fixture(scope="module")
def running(bench: Bench) -> Iterator[Bench]:
    """The bench with one worker on the queue `celery`."""
    with bench.worker("celery"):
        yield bench


def result(answer: Any) -> Any:
    return answer.get(timeout=30, interval=0.05, disable_sync_subtasks=False)


def test_a_chain_hands_results_on(running: Bench) -> None:
    signature = chain(
        running.signature(tasks.add, 2, 3),
        running.signature(tasks.multiply, 10),
        running.signature(tasks.add, 1),
    )
    assert result(signature.apply_async()) == 51


def test_a_group_runs_everywhere_and_keeps_its_order(running: Bench) -> None:
    assert result(group(running.signature(tasks.add, n, n) for n in range(10)).apply_async()) == [
        2 * n for n in range(10)
    ]


def test_a_chord_gathers_through_the_file_back_end(running: Bench) -> None:
    header = [running.signature(tasks.add, n, 1) for n in range(5)]
    assert result(chord(header)(running.signature(tasks.total))) == 15


def test_retry_publishes_the_task_again_until_it_succeeds(running: Bench) -> None:
    running.signature(tasks.stubborn, "stubborn", 3).apply_async()
    until(lambda: "done" in running.traces("stubborn"), "the fourth attempt")
    assert running.traces("stubborn") == [*(f"attempt {number}" for number in range(4)), "done"]


def test_tasks_with_an_eta_wait_without_holding_up_others(bench: Bench) -> None:
    """One process with a prefetch of one: held ETA tasks must raise the prefetch or the worker starves."""
    with bench.worker("later", concurrency=1):
        distant = [
            bench.signature(tasks.note, "distant", "never").apply_async(queue="later", countdown=600)
            for _ in range(4)
        ]
        started = time.monotonic()
        soon = bench.signature(tasks.add, 20, 22).apply_async(queue="later", countdown=1.5)
        assert result(bench.signature(tasks.add, 1, 1).apply_async(queue="later")) == 2
        assert result(soon) == 42
        assert time.monotonic() - started >= 1.4, "the timed one waited for its time"
        assert bench.traces("distant") == []
        bench.app.control.revoke([answer.id for answer in distant])


def test_a_revoked_task_is_never_run(running: Bench) -> None:
    answer = running.signature(tasks.note, "revoked", "must not happen").apply_async(countdown=1)
    replies = running.app.control.revoke(answer.id, reply=True, timeout=5, limit=1)
    assert replies, "the worker heard the broadcast"
    until(lambda: answer.state == "REVOKED", "the worker threw it away")
    assert running.traces("revoked") == []


def test_workers_answer_pings_and_show_their_queues(running: Bench) -> None:
    (reply,) = running.app.control.ping(timeout=5, limit=1)
    (name,) = reply
    queues = running.app.control.inspect([name], timeout=5).active_queues()
    assert [row["name"] for row in queues[name]] == ["celery"]


def test_a_task_with_late_acks_survives_the_kill_of_its_worker(bench: Bench) -> None:
    answer = bench.signature(tasks.careful, "careful").apply_async(queue="careful")
    with bench.worker("careful", concurrency=1) as doomed:
        until(lambda: bench.traces("careful"), "the task has started")
        kill_group(doomed)
    with bench.worker("careful", concurrency=1):
        assert result(answer) == "finished"
    first, second = bench.traces("careful")
    assert first.endswith("redelivered False")
    assert second.endswith("redelivered True")
