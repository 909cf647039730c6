"""The fuzz run of CI: planted mistakes are caught, then the kernel is fuzzed under AddressSanitizer.

FUZZ_SECONDS (60) and FUZZ_SEED (1) say how long and from where; `run.py` is the same without pytest.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fuzz import build, run

SECONDS = float(os.environ.get("FUZZ_SECONDS", "60"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))


@pytest.fixture(scope="module")
def library() -> Path:
    try:
        return build.build()
    except build.MissingTools as missing:
        pytest.skip(str(missing))


@pytest.mark.timeout(build.BUILD_S)
@pytest.mark.parametrize("name", list(run.PLANTED))
def test_the_harness_catches_a_planted(library: Path, name: str) -> None:
    assert list(run.check_planted(library, (name,))) == []


@pytest.mark.timeout(SECONDS * 2 + 300)
def test_the_kernel_survives_fuzzing(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run.campaign(library, run.TARGETS, SECONDS, SEED, run.UNLIMITED)
    said = capsys.readouterr().out
    with capsys.disabled():
        run.say(said)
    assert found == 0, said
