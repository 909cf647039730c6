"""The pytest plugin in a pytest of its own: real brokers, fresh virtual hosts, nothing left behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path

import pika
import pytest

import mirrormq
from mirrormq.testing import BrokerError, running

pytest_plugins = "pytester"

GONE_SECONDS = 20


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Runs tests in a process of its own, with our plugin and no other."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(mirrormq.__file__).parents[1]))
    return pytester


def run(inner: pytest.Pytester, *options: str) -> pytest.RunResult:
    return inner.runpytest_subprocess("-p", "mirrormq.testing.plugin", *options)


def wait_until_gone(pid: int) -> None:
    """Wait for the end of a process that is not our child."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            assert select.select([handle], [], [], GONE_SECONDS)[0], f"process {pid} still runs"
        finally:
            os.close(handle)


def test_the_fixture_is_a_real_broker_with_a_virtual_host_of_its_own(inner: pytest.Pytester) -> None:
    inner.makepyfile(
        """
        import pika, pytest

        seen = set()

        @pytest.mark.parametrize("time", [1, 2])
        def test_it(mirrormq, time):
            assert mirrormq.url.endswith("/" + mirrormq.vhost)
            assert (mirrormq.host, mirrormq.user, mirrormq.password) == ("127.0.0.1", "guest", "guest")
            assert mirrormq.admin_url is None
            channel = pika.BlockingConnection(pika.URLParameters(mirrormq.url)).channel()
            # The name is free again: the first test's virtual host is gone with everything in it.
            assert channel.queue_declare("same", durable=True).method.message_count == 0
            channel.basic_publish("", "same", b"left behind")
            seen.add((mirrormq.vhost, mirrormq.process.pid))

        def test_one_process_served_both(mirrormq):
            assert len(seen) == 2
            assert {pid for _, pid in seen} == {mirrormq.process.pid}
        """
    )
    run(inner).assert_outcomes(passed=3)


def test_settings_come_from_the_configuration_of_pytest(inner: pytest.Pytester) -> None:
    inner.makeini(
        """
        [pytest]
        mirrormq_admin = true
        mirrormq_config =
            heartbeat = 7
            default_user = tester
        """
    )
    inner.makepyfile(
        """
        import urllib.request, urllib.error, pika, pytest

        def test_it(mirrormq):
            pika.BlockingConnection(pika.URLParameters(mirrormq.url)).channel().queue_declare("q")
            assert mirrormq.user == "tester"
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(mirrormq.admin_url + "/api/whoami")
        """
    )
    run(inner).assert_outcomes(passed=1)


def test_each_worker_of_xdist_has_its_own_broker(inner: pytest.Pytester, tmp_path: Path) -> None:
    inner.makepyfile(
        f"""
        import pathlib, pytest

        @pytest.mark.parametrize("n", range(8))
        def test_it(mirrormq, worker_id, n):
            pathlib.Path({str(tmp_path)!r}, f"{{worker_id}}-{{mirrormq.process.pid}}").touch()
        """
    )
    run(inner, "-p", "xdist.plugin", "-n", "2").assert_outcomes(passed=8)
    names = sorted(path.name.split("-") for path in tmp_path.iterdir())
    assert [worker for worker, _ in names] == ["gw0", "gw1"]
    assert names[0][1] != names[1][1]


def test_a_killed_test_run_leaves_neither_process_nor_folder(inner: pytest.Pytester, tmp_path: Path) -> None:
    report = tmp_path / "report"
    inner.makepyfile(
        f"""
        import os, pathlib, pika, signal

        def test_it(mirrormq):
            connection = pika.BlockingConnection(pika.URLParameters(mirrormq.url))
            process = mirrormq.process
            pathlib.Path({str(report)!r}).write_text(f"{{process.pid}} {{process.folder}}")
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    result = run(inner)
    assert result.ret == -signal.SIGKILL
    pid, folder = report.read_text().split()
    wait_until_gone(int(pid))
    assert not Path(folder).exists()


def test_a_broker_that_is_killed_is_cleaned_up_by_its_parent() -> None:
    with running() as broker:
        folder = broker.process.folder
        os.kill(broker.process.pid, signal.SIGKILL)
        wait_until_gone(broker.process.pid)
        with pytest.raises(BrokerError):
            broker.ask("add_vhost", name="v")
    assert not folder.exists()


def test_a_broker_that_cannot_start_says_why() -> None:
    with pytest.raises(BrokerError, match="no_such_setting"), running(["no_such_setting = 1"]):
        pass


def test_settings_of_other_nodes_in_the_environment_do_not_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRRORMQ_DATA_DIR", "/nowhere")
    monkeypatch.setenv("MIRRORMQ_HEARTBEAT", "nonsense")
    with running() as broker:
        pika.BlockingConnection(pika.URLParameters(broker.url)).close()


def test_administrative_requests_need_no_admin_api() -> None:
    with running() as broker:
        broker.ask("add_user", name="u", password="u")
        broker.ask("set_permissions", vhost="/", user="u", configure=".*", write=".*", read=".*")
        parameters = pika.URLParameters(broker.url.replace("guest:guest", "u:u"))
        pika.BlockingConnection(parameters).close()
        with pytest.raises(BrokerError, match="user_exists"):
            broker.ask("add_user", name="u", password="u")
        with pytest.raises(BrokerError, match="unknown_command"):
            broker.ask("bogus")
        with pytest.raises(BrokerError, match="bad_request"):
            broker.ask("add_user", nme="u")
