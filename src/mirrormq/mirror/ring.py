"""The way of a record from the master to every copy. Only this file knows the topology.

Guarantee: every member has exactly one source, and following sources from any of them leads to the master.
"""

from collections.abc import Callable

from mirrormq.mirror.views import View, acting_master, learner_of


def chain(view: View) -> list[str]:
    """The master, then the members in the order they joined; restarted ones last, because whoever stands
    behind one of them would wait until it has caught up.
    """
    others = [entry for entry in view.members if entry.node != view.master]
    return [
        view.master,
        *(entry.node for entry in others if not entry.is_restarted),
        *(entry.node for entry in others if entry.is_restarted),
    ]


def source_of(view: View, node: str, is_reachable: Callable[[str], bool]) -> str:
    """Who pushes to this node: its left neighbour, or the master if that one cannot be reached or if the
    node is a learner. Empty: nobody.
    """
    if not acting_master(view) or node == view.master:
        return ""
    if learner_of(view, node) is not None:
        return view.master
    nodes = chain(view)
    if node not in nodes:
        return ""
    left = nodes[nodes.index(node) - 1]
    return left if is_reachable(left) else view.master
