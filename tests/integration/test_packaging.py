"""What is installed on servers: sample configurations, unit and container file are valid."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mirrormq.runtime import config
from tests.integration.process import failing

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"
SAMPLES = sorted((PACKAGING / "config").iterdir())
UNIT = PACKAGING / "systemd/mirrormq.service"
INSTRUCTIONS = {
    "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "RUN", "STOPSIGNAL", "USER",
    "VOLUME", "WORKDIR",
}  # fmt: skip


@pytest.mark.parametrize("sample", SAMPLES, ids=[sample.name for sample in SAMPLES])
def test_a_sample_configuration_is_valid_and_has_no_key_without_a_meaning(sample: Path) -> None:
    name = "rabbit@broker-1" if sample.name == "rabbitmq.conf" else "mirrormq@broker-1"
    result = failing("--config", str(sample), "--node-name", name, "--check-config")
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"The configuration of node {name} is valid.\n"


def test_the_samples_of_a_cluster_list_three_nodes_and_no_secret() -> None:
    for sample in SAMPLES:
        loaded = config.load([str(sample)], {}, [], "broker-1")
        assert len(loaded.settings.cluster_nodes) == (0 if sample.name == "single.toml" else 3)
        assert not loaded.settings.links.secret
        assert loaded.settings.default_user.password == "guest"


def test_the_manual_of_the_folder_names_every_file() -> None:
    manual = (PACKAGING / "README.md").read_text(encoding="utf-8")
    files = [path for path in PACKAGING.rglob("*") if path.is_file() and path.name != "README.md"]
    missing = [
        str(path.relative_to(PACKAGING)) for path in files if str(path.relative_to(PACKAGING)) not in manual
    ]
    assert not missing


def test_the_unit_starts_what_there_is_with_the_options_there_are() -> None:
    unit = UNIT.read_text(encoding="utf-8")
    [start] = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    words = start.split()
    assert words[:2] == ["/opt/mirrormq/bin/mirrormq", "serve"]
    shown = failing("--help").stdout
    assert all(word in shown for word in words if word.startswith("--"))
    for line in (
        "Type=notify",
        "ExecReload=/bin/kill -HUP $MAINPID",
        "User=mirrormq",
        "StateDirectory=mirrormq",
    ):
        assert re.search(f"^{re.escape(line)}$", unit, re.MULTILINE)
    for key in re.findall(r"^Environment=(MIRRORMQ_\w+)=", unit, re.MULTILINE):
        assert config.read_environment({key: "/x"})


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze")
    # The unit is looked at as installed: systemd asks whether the command exists.
    installed = tmp_path / "mirrormq.service"
    installed.write_text(
        UNIT.read_text(encoding="utf-8").replace("/opt/mirrormq/bin/mirrormq", sys.executable)
    )
    command = ["systemd-analyze", "verify", "--man=no", str(installed)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    ours = [line for line in result.stderr.splitlines() if "mirrormq" in line]
    assert not ours
    assert result.returncode == 0, result.stderr


def test_the_user_and_the_folders_of_the_unit_are_made() -> None:
    users = (PACKAGING / "systemd/mirrormq.sysusers.conf").read_text(encoding="utf-8")
    folders = (PACKAGING / "systemd/mirrormq.tmpfiles.conf").read_text(encoding="utf-8")
    assert re.search(r'^u mirrormq - ".+" /var/lib/mirrormq$', users, re.MULTILINE)
    assert re.search(r"^d /etc/mirrormq 0750 root mirrormq -$", folders, re.MULTILINE)


def test_the_container_file_is_made_of_instructions_and_copies_what_there_is(clone: Path) -> None:
    text = (PACKAGING / "container/Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    assert {line.split()[0] for line in lines} <= INSTRUCTIONS
    for line in lines:
        words = line.split()
        if words[0] == "COPY" and not words[1].startswith("--from"):
            assert all((clone / word).exists() for word in words[1:-1]), line
    # The container has no init: the node is process 1, and no shell stands between it and a signal.
    assert 'ENTRYPOINT ["mirrormq"]' in lines
    for key in re.findall(r"\b(MIRRORMQ_\w+)=", text):
        assert config.read_environment({key: "/x"})
