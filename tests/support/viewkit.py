"""Short words for tests of mirrored queues: what happens to nodes, and who has a queue afterwards."""

from mirrormq.meta import commands as c
from mirrormq.meta.records import Policy, View
from mirrormq.meta.state import MetaState, Outcome
from tests.support.metakit import changed, declare_mirrored, must


def view_of(state: MetaState, name: str = "q") -> View:
    """The view of a queue."""
    return state.views["/", name]


def members(state: MetaState, name: str = "q") -> list[str]:
    """In-sync nodes, the master first; a restarted one has a star."""
    view = view_of(state, name)
    assert view.master == view.members[0].node == state.queues["/", name].node
    return [entry.node + "*" * entry.is_restarted for entry in view.members]


def learners(state: MetaState, name: str = "q") -> list[str]:
    """Nodes that are not in sync."""
    return [entry.node for entry in view_of(state, name).learners]


def dead(state: MetaState, node: str, defaults: c.HaDefaults = "safe") -> Outcome:
    """A node is declared dead."""
    return must(state, c.NodeDead(node, state.nodes[node].start, defaults, state.nodes[node].returns))


def restarted(state: MetaState, node: str) -> Outcome:
    """A node is started again."""
    return must(state, c.NodeRestarted(node, alone=False, start=state.nodes[node].start + 1))


def returned(state: MetaState, node: str) -> Outcome:
    """A node that was declared dead is back."""
    return must(state, c.NodeReturned(node, state.nodes[node].start))


def waited(state: MetaState, node: str, defaults: c.HaDefaults = "safe") -> Outcome:
    """The wait for members that were not restarted is over."""
    return must(state, c.PromoteRestarted(node, state.nodes[node].start, defaults))


def policy(state: MetaState, **keys: object) -> None:
    """Set a policy for all queues, `_` for `-` in its keys."""
    definition = {"ha-mode": "all"} | {key.replace("_", "-"): value for key, value in keys.items()}
    must(state, c.SetPolicy(Policy("/", "p", ".*", definition)))


def with_learners(state: MetaState, *nodes: str) -> None:
    """A queue whose only in-sync copy is on node a."""
    declare_mirrored(state, "q", "a")
    for node in nodes:
        changed(state, "q", "add_learner", node)
