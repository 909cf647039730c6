"""Promises about mirrored queues under faults, kept for real clients of real processes.

A slice of the campaign `make mirror-kill`: each fault once. What is checked is in mirrorclients.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cluster import mirrorrun
from tests.cluster.mirrorfaults import FAULTS

SEED = 5
KILLS = [fault for fault in FAULTS if fault.startswith(("kill", "graceful"))]
SILENCES = [fault for fault in FAULTS if "frozen" in fault or "cut" in fault or "slow" in fault]
DISKS = [fault for fault in FAULTS if fault not in KILLS and fault not in SILENCES]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("faults", [KILLS, SILENCES, DISKS], ids=["dead nodes", "silent nodes", "disks"])
def test_nothing_confirmed_is_lost_no_committed_ack_comes_back_and_channels_keep_their_order(
    tmp_path: Path, faults: list[str]
) -> None:
    with mirrorrun.running(tmp_path, 3, SEED, sys.stdout.write) as run:
        if run.field.disk is None and "full disk of a node" in faults:
            faults = [fault for fault in faults if fault != "full disk of a node"]
        for fault in faults:
            run.round(fault)
        sys.stdout.write(mirrorrun.summary(run.rounds))


def test_five_nodes_lose_two_and_keep_every_promise(tmp_path: Path) -> None:
    with mirrorrun.running(tmp_path, 5, SEED, sys.stdout.write) as run:
        run.round("kill -9 of master and mirror")
        run.round("link between two mirrors cut")
        sys.stdout.write(mirrorrun.summary(run.rounds))
