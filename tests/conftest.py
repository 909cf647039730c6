"""What all tests share: how hypothesis runs, and where the clone is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Machines that run tests are shared: a deadline per example would measure the neighbours.
settings.register_profile(
    "default", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
# CI judges a change: it tries the same examples for everybody. New ones are tried on developers' machines.
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, database=None)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=2_000)
CHOSEN = "ci" if os.environ.get("CI") == "true" else "default"
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", CHOSEN))


@pytest.fixture(scope="session")
def clone() -> Path:
    """The folder of the clone these tests belong to."""
    return Path(__file__).resolve().parent.parent
