"""Options of `mirrormq serve`, the banner, and what is shown of a running process."""

from __future__ import annotations

import os
import shlex
import socket
from pathlib import Path

import pytest

from mirrormq import __main__, __version__
from mirrormq.runtime import banner, main
from mirrormq.runtime.facts import facts, shown_settings
from mirrormq.runtime.faults import ConfigError, StartError
from mirrormq.runtime.ports import PORT_BASE_MAX, bind, bound_address, free_base
from mirrormq.runtime.processes import describe_process, port_owner
from mirrormq.runtime.settings import DefaultUser, Settings, SocketSettings
from mirrormq.runtime.values import Address

HERE = os.getpid()


def read(*words: str) -> Settings:
    return main.load_settings(main.parser().parse_args(words)).settings


def test_a_port_base_moves_all_ports() -> None:
    settings = read("--port-base", "6000")
    assert settings.listen == (Address("", 6000),)
    assert settings.admin_port == 16000
    assert settings.links.listen == Address("", 26000)


def test_options_of_the_command_line_are_settings() -> None:
    settings = read(
        "--node-name", "a@b", "--data", "/d", "--no-admin", "--listen", "1", "--listen", "[::1]:2", "--set",
        "heartbeat = 9",
    )  # fmt: skip
    assert (settings.node_name, settings.data_dir, settings.admin) == ("a@b", "/d", False)
    assert settings.listen == (Address("", 1), Address("::1", 2))
    assert settings.heartbeat_s == 9


def test_a_data_root_holds_a_folder_per_node() -> None:
    assert read("--data-root", "/r", "--node-name", "a@b").data_dir == "/r/a@b"
    assert read("--data-root", "/r", "--data", "/d").data_dir == "/d"


def test_a_setting_without_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected KEY=VALUE"):
        read("--set", "heartbeat")


@pytest.mark.parametrize("base", ["0", "x", str(PORT_BASE_MAX + 1)])
def test_a_port_base_leaves_room_for_the_other_ports(base: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.parser().parse_args(["--port-base", base])
    assert "expected a port between" in capsys.readouterr().err


def test_a_free_base_has_all_its_ports_free() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        base = free_base(1024, lambda base: (base, port) if base < 1100 else (base,))
    assert base >= 1100


def test_a_socket_is_bound_for_both_families_unless_a_host_is_named() -> None:
    listening = bind(Address("", 0), SocketSettings(), lambda: "")
    with listening:
        address = bound_address(listening)
        assert address.host == ""
        listening.listen()
        socket.create_connection(("127.0.0.1", address.port)).close()
        if listening.family == socket.AF_INET6:
            socket.create_connection(("::1", address.port)).close()


def test_a_busy_or_unknown_address_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=rf"Port {port} is used by process {HERE} \(.*run: do this"):
            bind(Address("127.0.0.1", port), SocketSettings(), lambda: "do this")
    with pytest.raises(StartError, match="the host is not known"):
        bind(Address("no.such.host.invalid", 1), SocketSettings(), lambda: "")
    with pytest.raises(StartError, match=r"Cannot listen on 192\.0\.2\.1:1"):
        bind(Address("192.0.2.1", 1), SocketSettings(), lambda: "")


def test_a_process_is_shown_by_its_command() -> None:
    assert describe_process(HERE).startswith(f"process {HERE} (")
    assert describe_process(2**22 + 1) == f"process {2**22 + 1}"
    assert port_owner(1) == "another program"


def test_a_command_that_works_is_offered_for_a_busy_port() -> None:
    options = main.parser().parse_args(
        ["--invoked-as", "./run", "--data-root", "./data", "--config", "a b.toml"]
    )
    words = shlex.split(main.cure(options, Settings(node_name="a@b", data_dir="data/a@b")))
    assert words[0] == "./run"
    assert words[1] == "--port-base"
    assert words[3:] == ["--config", "a b.toml"]


def test_the_banner_says_where_how_and_what_to_paste() -> None:
    settings = Settings(node_name="a@b", data_dir="data/a@b")
    text = banner.text(settings, ["amqp://127.0.0.1:5672"], "http://127.0.0.1:15672", "./run")
    assert "amqp://guest:guest@127.0.0.1:5672/%2F" in text
    assert "http://127.0.0.1:15672" in text
    assert "Ctrl-C" in text
    assert "./run ctl list_queues name messages" in text
    assert "basic_publish" in text
    elsewhere = banner.text(Settings(data_dir="/var/lib/x"), ["amqp://h:1"], None, "mirrormq serve")
    assert "mirrormq ctl --data /var/lib/x list_queues" in elsewhere


def test_the_banner_never_shows_a_password_of_ones_own() -> None:
    settings = Settings(default_user=DefaultUser(name="me", password="hunter2"))
    assert "hunter2" not in banner.text(settings, ["amqp://h:1"], None, "./run")


def test_facts_name_files_listeners_and_settings_without_secrets(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path), default_user=DefaultUser(password="hunter2"))
    shown = facts(settings, [("amqp", Address("", 5672)), ("http", Address("127.0.0.1", 15672))], 1000)
    assert shown["pid"] == HERE
    assert shown["data_dir"] == str(tmp_path)
    assert shown["fd_limit"] == 1000
    assert 0 < shown["fd_used"] < 1000
    assert shown["listeners"] == [
        {"protocol": "amqp", "interface": "[::]", "port": 5672},
        {"protocol": "http", "interface": "127.0.0.1", "port": 15672},
    ]
    assert "hunter2" not in str(shown)
    listed = shown_settings(settings)
    assert (listed["heartbeat"], listed["listeners.tcp"]) == (60, [":5672"])
    assert listed["vm_memory_high_watermark.relative"] == 0.4


def test_the_entry_knows_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["--version"]) == 0
    assert capsys.readouterr().out == f"mirrormq {__version__}\n"
    assert __main__.main([]) == 0
    assert "mirrormq serve" in capsys.readouterr().out
    assert __main__.main(["sevre"]) == 64
    assert "no command 'sevre'" in capsys.readouterr().err
