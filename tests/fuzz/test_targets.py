"""The fuzz targets without a sanitizer: a fixed number of cases and the whole corpus in every run."""

from __future__ import annotations

import random

import pytest

from tests.fuzz import grammar, targets

CASES = {
    "reader": 1500,
    "message": 3000,
    "queue": 400,
    "outbuffer": 300,
    "topic": 1500,
    "forward": 800,
    "rows": 800,
}


@pytest.mark.parametrize("name", list(targets.TARGETS))
def test_a_slice_of_the_cases_gives_right_answers(name: str) -> None:
    for seed in range(CASES[name]):
        try:
            targets.TARGETS[name](random.Random(f"{name} {seed}"))
        except AssertionError as wrong:
            raise AssertionError(f"seed {seed}: {wrong}") from wrong


@pytest.mark.parametrize("name", list(grammar.CORPUS))
def test_the_corpus_is_read_alike_however_it_is_cut(name: str) -> None:
    for seed in range(30):
        targets.check_stream(random.Random(seed), grammar.CORPUS[name])
