"""Record what RabbitMQ answers to every misuse case:  python -m tests.interop.misuse.record

Starts a private RabbitMQ, plays all cases and writes recorded.json beside this file. With --check nothing is
written; differences to the committed recording are listed and make the exit status 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tests.interop.misuse.cases import CASES, CONFIG, DEFINITIONS, PLUGINS
from tests.interop.misuse.table import play
from tests.support import rabbitmq

RECORDING = Path(__file__).with_name("recorded.json")
WANTED_VERSION = "3.10.8"


def recorded() -> dict[str, Any]:
    cases: dict[str, Any] = json.loads(RECORDING.read_text())["cases"]
    return cases


def answers(only: list[str]) -> dict[str, Any]:
    with rabbitmq.running(PLUGINS, CONFIG) as node:
        node.import_definitions(DEFINITIONS)
        return play(node.host, node.port, only)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("case", nargs="*", help="only these; the rest of the recording is kept")
    options = parser.parse_args(argv)
    if rabbitmq.version() != WANTED_VERSION:
        parser.error(f"needs RabbitMQ {WANTED_VERSION}, found {rabbitmq.version() or 'none'}")
    before = recorded() if RECORDING.exists() else {}
    now = answers(options.case)
    if options.check:
        different = [name for name, verdict in now.items() if before.get(name) != verdict]
        for name in different:
            sys.stdout.write(f"{name}\n  recorded {before.get(name)}\n  now      {now[name]}\n")
        return 1 if different else 0
    kept = {name: now.get(name, before.get(name)) for name in CASES}
    document = {
        "broker": f"RabbitMQ {WANTED_VERSION}",
        "cases": {k: v for k, v in kept.items() if v is not None},
    }
    RECORDING.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    sys.stdout.write(f"{len(now)} cases recorded\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
