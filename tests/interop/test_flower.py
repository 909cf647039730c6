"""Celery Flower: its broker page shows our queues, through our API."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.parse import quote

import pytest
from celery import Celery

from tests.interop.brokers import Broker, free_port
from tests.interop.waiting import until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
START_S = 45.0


def page(port: int, path: str) -> str:
    """A page, or nothing while Flower is not up."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def test_the_broker_page_shows_queues_and_how_many_messages_they_have(broker: Broker, tmp_path: Path) -> None:
    app = Celery("flowered", broker=broker.url)
    app.conf.task_default_queue = "celery"
    for number in range(3):
        app.send_task("tasks.nobody", args=[number])
    port = free_port()
    api = f"http://{broker.user}:{quote(broker.password)}@{broker.host}:{broker.http_port}/api/"
    words = [sys.executable, "-m", "celery", f"--broker={broker.url}", "flower", f"--port={port}"]
    words += ["--address=127.0.0.1", f"--broker-api={api}", "--inspect-timeout=200"]
    with (tmp_path / "flower.log").open("wb") as log:
        flower = subprocess.Popen(words, stdout=log, stderr=log, cwd=ROOT)
    try:
        shown = until(lambda: page(port, "/broker"), "Flower shows its broker page", START_S)
        assert ">celery<" in shown.replace(" ", ""), (shown, (tmp_path / "flower.log").read_text())
        row = shown[shown.index("celery</") :][:400]
        assert ">3<" in row.replace(" ", "").replace("\n", ""), row
    finally:
        flower.kill()
        flower.wait()
