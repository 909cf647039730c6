"""Lists are built in slices: the loop gets its turn, and nothing is lost, doubled or misordered by it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator

from mirrormq.http import answers
from mirrormq.node.steps import Problem
from mirrormq.wire.table import Timestamp


def busy(count: int) -> Iterator[dict[str, int]]:
    """Rows that take so long to build that one slice cannot hold them."""
    for number in range(count):
        yield {"n": sum(range(200)) * 0 + number}


async def test_the_loop_gets_turns_while_a_long_list_is_built() -> None:
    turns = 0
    loop = asyncio.get_running_loop()

    def turn() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(turn)

    loop.call_soon(turn)
    found = await answers.collected(busy(20_000))
    assert turns > 10
    assert [row["n"] for row in found] == list(range(20_000))


async def test_sorting_in_slices_gives_the_order_of_one_sort() -> None:
    source = random.Random(7)
    rows = [{"k": source.randrange(500), "n": n} for n in range(3_000)]
    found = await answers.sorted_slices(rows, lambda row: row["k"], reverse=False)
    assert found == sorted(rows, key=lambda row: row["k"])
    reverse = await answers.sorted_slices(rows, lambda row: row["k"], reverse=True)
    assert [row["k"] for row in reverse] == sorted((row["k"] for row in rows), reverse=True)


def test_octets_are_shown_in_base64_and_foreign_values_in_words() -> None:
    body = answers.response({"octets": b"\xff\xfe", "foreign": Timestamp(5), "complex": 1j}).body
    assert isinstance(body, bytes)
    assert json.loads(body) == {"octets": "//4=", "foreign": 5, "complex": "1j"}


def test_names_that_are_no_text_do_not_break_a_list() -> None:
    body = answers.response([{"name": "q\udcff", "arguments": {"\udcfe": ["\udcfd"]}}]).body
    assert isinstance(body, bytes)
    assert json.loads(body) == [{"name": "q\\xff", "arguments": {"\\xfe": ["\\xfd"]}}]


def test_refusals_of_the_node_become_rabbitmqs_status_codes() -> None:
    table = {
        "access_refused": (401, "Access refused."),
        "not_found": (404, "text"),
        "no_such_user": (404, "Not Found"),
        "bad_request": (400, "text"),
        "anything_else": (400, "text"),
        "internal_error": (500, "text"),
    }
    for kind, (status, reason) in table.items():
        fault = answers.of_problem(Problem(kind, "text"))
        assert (fault.status, fault.reason) == (status, reason), kind


def test_a_number_is_written_in_few_ascii_digits() -> None:
    for text, number in (("0", 0), ("12", 12), ("-3", -3), ("007", 7), (5, 5), ("9" * 18, 10**18 - 1)):
        assert answers.whole_number(text) == number, text
    for text in ("", "-", "--5", "+1", "²", "٣", "1_0", " 1", "1.0", 1.0, True, None, [1], "9" * 19):
        assert answers.whole_number(text) is None, text
