"""The automaton says what Python's `re` says, for every expression it takes."""

import re
from re import _parser  # type: ignore[attr-defined]

from hypothesis import example, given, settings
from hypothesis import strategies as st

from mirrormq.meta.automaton import Automaton, Inexpressible

ATOMS = st.sampled_from(
    ["a", "b", ".", "\\d", "\\W", "\\s", "[ab]", "[^a]", "[a-c_]", "[^\\d]", "A", "_", "\\n", "(?!)"]
)
ASSERTIONS = st.sampled_from(["^", "$", "\\b", "\\B", "\\A", "\\Z"])
REPEATS = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{0,2}", "{1,3}", "{2,}", "{0,1}?", "{0}"])


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = st.sampled_from(["(", "(?:", "(?=", "(?!", "(?i:", "(?s:", "(?m:"])
    return st.one_of(
        st.builds("{}{}".format, inner, inner),
        st.builds("{}{}{}".format, inner, inner, inner),
        st.builds("(?:{}|{})".format, inner, inner),
        st.builds("{}{})".format, group, inner),
        st.builds("(?:{}){}".format, inner, REPEATS),
        st.builds("{}{}".format, ATOMS, REPEATS),
    )


LOOK_BEHIND = st.builds("(?<{}{})".format, st.sampled_from("=!"), st.one_of(ATOMS, ASSERTIONS))
EXPRESSIONS = st.recursive(st.one_of(ATOMS, ASSERTIONS, LOOK_BEHIND), _grown, max_leaves=8)
NAMES = st.text("abAB_1 \n", max_size=7)


def _automaton(source: str) -> Automaton:
    return Automaton(_parser.parse(source.encode()))


@given(EXPRESSIONS, st.sampled_from(["", "(?i)", "(?m)", "(?s)"]), st.lists(NAMES, min_size=1, max_size=8))
@settings(max_examples=400, deadline=None)
@example("(?:a|\\b)*b", "", ["ab", "", "a b"])
@example("(?:a?){3}$", "", ["aaaa\n"])
@example("(?:(?=a)|b){2,}a", "", ["ba", "a", "bba"])
def test_it_finds_what_re_finds(expression: str, flags: str, names: list[str]) -> None:
    source = flags + expression
    compiled = re.compile(source.encode())
    try:
        automaton = _automaton(source)
    except Inexpressible:
        # Repeats write look-arounds out.
        assert source.count("(?=") + source.count("(?!") + source.count("(?<"), source
        return
    for name in names:
        octets = name.encode()
        assert automaton.matches(octets) == (compiled.search(octets) is not None), (source, name)
