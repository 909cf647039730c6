"""Every misuse in the table is answered as RabbitMQ 3.10.8 answers it, except for the wanted differences.

The recording is made by record.py; here the same cases are played against MirrorMQ and, where it is
installed, against RabbitMQ itself, so that neither the table nor the recording can drift from the original.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.interop.misuse.cases import CASES, CONFIG, DEFINITIONS, PLUGINS
from tests.interop.misuse.differences import DIFFERENCES, expected
from tests.interop.misuse.record import WANTED_VERSION, recorded
from tests.interop.misuse.table import play
from tests.support import mirrornode, rabbitmq

GROUPS = sorted({chosen.script.__module__.rpartition("_")[2] for chosen in CASES.values()})


def _group(name: str) -> list[str]:
    return [case for case, chosen in CASES.items() if chosen.script.__module__.endswith(f"_{name}")]


@pytest.fixture(scope="session")
def mirrormq() -> Iterator[tuple[str, int]]:
    with mirrornode.running(CONFIG, DEFINITIONS) as node:
        yield node.host, node.port


@pytest.fixture(scope="session")
def original() -> Iterator[tuple[str, int]]:
    if rabbitmq.version() != WANTED_VERSION:
        pytest.skip(f"RabbitMQ {WANTED_VERSION} is not installed")
    with rabbitmq.running(PLUGINS, CONFIG) as node:
        node.import_definitions(DEFINITIONS)
        yield node.host, node.port


@pytest.mark.parametrize("group", GROUPS)
def test_misuse_of_mirrormq_is_answered_as_recorded(
    group: str, mirrormq: tuple[str, int], subtests: Any
) -> None:
    original_answers = recorded()
    for name, verdict in play(*mirrormq, only=_group(group)).items():
        with subtests.test(name):
            assert verdict == expected(name, original_answers[name])


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_misuse_of_rabbitmq_is_answered_as_recorded(
    group: str, original: tuple[str, int], subtests: Any
) -> None:
    original_answers = recorded()
    for name, verdict in play(*original, only=_group(group)).items():
        with subtests.test(name):
            assert verdict == original_answers[name]


def test_every_case_is_recorded_and_every_recording_has_a_case() -> None:
    assert sorted(recorded()) == sorted(CASES)


def test_every_wanted_difference_is_one_and_has_a_reason() -> None:
    original_answers = recorded()
    for name, difference in DIFFERENCES.items():
        assert difference.reason
        assert expected(name, original_answers[name]) != original_answers[name], name
