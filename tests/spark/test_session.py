"""What local sessions of the pipeline say to Java, and what they leave to others."""

import subprocess
import sys

import pytest

from mirrormq.spark import session

OPTIONS = "spark.driver.defaultJavaOptions"


@pytest.fixture
def nobody(monkeypatch, tmp_path):
    """Nobody has chosen anything yet."""
    for name in session.CHOOSERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))


@pytest.mark.usefixtures("nobody")
def test_a_local_session_has_the_collector_that_costs_least():
    assert session.COLLECTOR in session._local_settings({})[OPTIONS].split()


@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize("name", session.CHOOSERS)
def test_a_collector_named_in_the_environment_is_left_alone(monkeypatch, name):
    monkeypatch.setenv(name, "-Dx=y -XX:+UseZGC")
    assert "GC" not in session._local_settings({})[OPTIONS]


@pytest.mark.usefixtures("nobody")
def test_a_collector_named_in_settings_is_left_alone():
    given = {"spark.driver.extraJavaOptions": "-Xss4m -XX:+UseSerialGC"}
    assert "GC" not in session._local_settings(given)[OPTIONS]


@pytest.mark.usefixtures("nobody")
def test_a_collector_named_in_the_defaults_of_spark_is_left_alone(tmp_path):
    (tmp_path / "spark-defaults.conf").write_text("spark.driver.extraJavaOptions  -XX:+UseG1GC\n")
    assert "GC" not in session._local_settings({})[OPTIONS]


PROGRAM = """
from mirrormq.spark.session import make_session

spark = make_session("which collector")
beans = spark._jvm.java.lang.management.ManagementFactory.getGarbageCollectorMXBeans()
print("collectors:", [bean.getName() for bean in beans])
"""


@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize(("chosen", "name"), [("", "PS Scavenge"), ("-XX:+UseSerialGC", "Copy")])
def test_java_starts_with_the_one_or_the_other(tmp_path, chosen, name):
    (tmp_path / "spark-defaults.conf").write_text(f"spark.driver.extraJavaOptions  -Dx=y {chosen}\n")
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert f"'{name}'" in found.stdout, found.stdout + found.stderr
