"""What the tests of clusters share. A test that fails shows what its nodes said."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.cluster import kit
from tests.cluster.kit import Cluster

SHOWN = 8_000
"""Characters at the end of each node's log."""


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    """Three nodes, agreed on each other."""
    with kit.cluster(tmp_path) as made:
        yield made


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[Cluster]:
    """Three nodes whose links can be cut."""
    with kit.cluster(tmp_path, proxied=True) as made:
        yield made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for cluster in kit.LATEST:
            for node in cluster:
                report.sections.append((f"log of {node}", node.text[-SHOWN:]))
    if report.when == "teardown":
        kit.LATEST.clear()
    return report
