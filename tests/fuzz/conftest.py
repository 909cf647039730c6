"""Fixtures of the tests with hostile input: a broker of their own, so that no other test can be disturbed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop import brokers
from tests.interop.brokers import Broker


@pytest.fixture(scope="session")
def victim() -> Iterator[Broker]:
    """A broker with a short handshake timeout; INTEROP_BROKER chooses which one, as in tests/interop."""
    with brokers.launch(["handshake_timeout = 1500"]) as broker:
        yield broker
