"""Tables look as rabbitmqctl prints them, and nothing a client names can break them."""

from __future__ import annotations

import io
import json

from mirrormq.ctl import render


def tabs(rows: list[dict[str, object]], columns: list[str], *, headers: bool = True) -> str:
    out = io.StringIO()
    render.tab_separated(rows, columns, out, headers=headers)
    return out.getvalue()


def test_cells_have_rabbitmqctls_forms() -> None:
    row = {
        "name": "q",
        "durable": True,
        "policy": None,
        "tags": ["a", "b"],
        "arguments": {"x-max-length": 10, "k": "v"},
    }
    text = tabs([row], ["name", "durable", "policy", "tags", "arguments"])
    assert (
        text == 'name\tdurable\tpolicy\ttags\targuments\nq\ttrue\t\t[a, b]\t[{"x-max-length",10},{"k","v"}]\n'
    )


def test_an_empty_table_has_no_header() -> None:
    assert tabs([], ["name"]) == ""


def test_names_with_tabs_and_line_ends_stay_in_their_cell() -> None:
    assert tabs([{"name": "a\tb\nc\x1b[31m"}], ["name"], headers=False) == "a\\tb\\nc\\x1b[31m\n"


def test_a_drawn_table_shows_escape_sequences_instead_of_obeying_them() -> None:
    out = io.StringIO()
    render.drawn([{"name": "\x1b[31m[bold]x"}], ["name"], out, headers=True)
    assert "\\x1b[31m[bold]x" in out.getvalue()


def test_json_is_an_array_of_objects_with_typed_arguments() -> None:
    out = io.StringIO()
    row = {"name": "q", "arguments": {"i": 1, "l": 1 << 40, "b": True, "s": "x", "t": {"f": 1.5}, "a": [1]}}
    render.as_json([row], ["name", "arguments"], out)
    assert json.loads(out.getvalue()) == [
        {
            "name": "q",
            "arguments": [
                ["i", "signedint", 1],
                ["l", "long", 1 << 40],
                ["b", "bool", True],
                ["s", "longstr", "x"],
                ["t", "table", [["f", "double", 1.5]]],
                ["a", "array", [["signedint", 1]]],
            ],
        }
    ]


def test_csv_quotes_every_cell() -> None:
    out = io.StringIO()
    render.as_csv([{"name": 'a"b', "n": 1}], ["name", "n"], out, headers=True)
    assert out.getvalue() == '"name","n"\n"a""b","1"\n'


def test_erlang_terms_are_property_lists() -> None:
    out = io.StringIO()
    render.as_erlang([{"name": "q", "n": None}], ["name", "n"], out)
    assert out.getvalue() == '[[{name,"q"},{n,undefined}]]\n'
