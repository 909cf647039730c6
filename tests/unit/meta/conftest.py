"""States and stores for the tests of definitions."""

import pytest

from mirrormq.meta.commands import Command
from mirrormq.meta.state import MetaState, Outcome, bootstrap_commands


@pytest.fixture
def state() -> MetaState:
    """A state with the default vhost and user."""
    state = MetaState()
    for command in bootstrap_commands("guest", "", "/", ("administrator",)):
        must(state, command)
    return state


def must(state: MetaState, command: Command) -> Outcome:
    """Apply a command that has to succeed."""
    outcome = state.apply(command)
    assert outcome.ok, outcome
    return outcome
