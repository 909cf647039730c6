"""General options work before and after the command, as with rabbitmqctl."""

from __future__ import annotations

import pytest

from mirrormq.ctl.faults import Misuse
from mirrormq.ctl.options import split


@pytest.mark.parametrize(
    "words",
    [
        ["-p", "v", "-q", "list_queues", "name"],
        ["list_queues", "-p", "v", "name", "--quiet"],
        ["list_queues", "name", "--vhost=v", "-q"],
    ],
)
def test_options_count_wherever_they_stand(words: list[str]) -> None:
    options, command, rest = split(words)
    assert (options.vhost, options.quiet) == ("v", True)
    assert (command, rest) == ("list_queues", ["name"])


def test_an_option_of_the_command_itself_is_left_to_it() -> None:
    own = {"list_user_limits": frozenset({"--user"})}
    options, _, rest = split(["--user", "admin", "list_user_limits", "--user", "u"], own)
    assert options.user == "admin"
    assert rest == ["--user", "u"]


def test_words_after_two_dashes_are_no_options() -> None:
    options, command, rest = split(["add_user", "u", "--", "-q"])
    assert not options.quiet
    assert (command, rest) == ("add_user", ["u", "--", "-q"])


def test_json_is_short_for_the_json_formatter() -> None:
    assert split(["--json", "status"])[0].formatter == "json"


@pytest.mark.parametrize(
    "words", [["-p"], ["--timeout", "soon", "x"], ["-t", "-1", "x"], ["--formatter", "xml", "x"]]
)
def test_missing_and_wrong_values_are_misuse(words: list[str]) -> None:
    with pytest.raises(Misuse):
        split(words)


def test_an_infinite_timeout_is_understood() -> None:
    assert split(["--timeout", "infinity", "status"])[0].timeout is None
