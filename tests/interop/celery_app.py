"""The Celery application of the interop tests: plain tasks that leave their traces in a folder.

A worker runs it in a process of its own; INTEROP_CELERY_BROKER and INTEROP_CELERY_FOLDER say where.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from celery import Celery

FOLDER = Path(os.environ.get("INTEROP_CELERY_FOLDER", "."))


def make_app(broker_url: str, folder: Path) -> Celery:
    made = Celery("interop", broker=broker_url, backend=f"file://{folder}/results")
    made.conf.update(
        broker_connection_retry_on_startup=True,
        broker_transport_options={"confirm_publish": True},
        worker_prefetch_multiplier=1,
        worker_send_task_events=True,
        result_chord_retry_interval=0.2,
    )
    return made


app = make_app(os.environ.get("INTEROP_CELERY_BROKER", "amqp://"), FOLDER)


def trace(name: str, line: str) -> None:
    with (FOLDER / name).open("a") as file:
        file.write(line + "\n")


def traces(folder: Path, name: str) -> list[str]:
    file = folder / name
    return file.read_text().splitlines() if file.exists() else []


@app.task(name="interop.add")
def add(x: int, y: int) -> int:
    return x + y


@app.task(name="interop.multiply")
def multiply(x: int, y: int) -> int:
    return x * y


@app.task(name="interop.total")
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(name="interop.note")
def note(name: str, text: str) -> None:
    trace(name, text)


@app.task(bind=True, name="interop.stubborn", max_retries=5, ignore_result=True)
def stubborn(self: Any, name: str, failures: int) -> None:
    """Fails `failures` times. Attempts run in several processes: too many for one file of the back end."""
    trace(name, f"attempt {self.request.retries}")
    if self.request.retries < failures:
        raise self.retry(countdown=0)
    trace(name, "done")


@app.task(bind=True, name="interop.careful", acks_late=True, reject_on_worker_lost=True)
def careful(self: Any, name: str) -> str:
    """Hangs in its first worker until that is killed; finishes when delivered again."""
    redelivered = bool(self.request.delivery_info["redelivered"])
    trace(name, f"pid {os.getpid()} redelivered {redelivered}")
    if not redelivered:
        threading.Event().wait()
    return "finished"
