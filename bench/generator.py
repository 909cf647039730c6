"""The load generator amqpload: compiled when its source is newer, run as a process, one JSON line back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCE = HERE / "amqpload.c"
FLAGS = ["-O2", "-g", "-Wall", "-Wextra", "-std=gnu11"]

Result = dict[str, Any]


def program() -> Path:
    """Path of the compiled generator, under build/ beside the other things that can be made again."""
    compiled = HERE.parent / "build" / "bench" / "amqpload"
    if compiled.exists() and compiled.stat().st_mtime >= SOURCE.stat().st_mtime:
        return compiled
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit(
            "The load generator needs a C compiler: install gcc (Debian: apt install gcc libc6-dev)."
        )
    compiled.parent.mkdir(parents=True, exist_ok=True)
    fresh = compiled.with_suffix(f".{os.getpid()}")
    subprocess.run([compiler, *FLAGS, "-o", str(fresh), str(SOURCE)], check=True)
    fresh.replace(compiled)
    return compiled


def load(options: list[str], port: int, pid: int, timeout_s: float = 300.0) -> Result:
    """Run the generator against a broker on this machine whose process tree begins at `pid`."""
    command = [str(program()), "--hosts", f"127.0.0.1:{port}", "--broker-pids", str(pid), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if not done.stdout.strip():
        return {"error": done.stderr.strip() or f"exit status {done.returncode}"}
    result: Result = json.loads(done.stdout)
    if done.stderr.strip():
        result["said"] = done.stderr.strip()
    return result
