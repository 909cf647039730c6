"""One cluster for all tests that type commands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster import kit
from tests.cluster.kit import Cluster


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes, agreed on each other."""
    with kit.cluster(tmp_path_factory.mktemp("seeds")) as made:
        yield made
