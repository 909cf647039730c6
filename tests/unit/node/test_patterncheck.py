"""A stored pattern that is not matched as it is written is told to the operator, and holds nobody up."""

from mirrormq.meta.commands import Command, PutUser, SetPermission, SetPolicy, SetTopicPermission
from mirrormq.meta.passwords import SHA256, salted_hash
from mirrormq.meta.records import Permission, Policy, TopicPermission, User
from mirrormq.node import requests as ask
from mirrormq.sim.disk import MemoryDisk
from tests.support.adminkit import AdminKit
from tests.support.nodekit import NodeKit

HOSTILE = "(a+)+\\1x"


def do(kit: NodeKit, *commands: Command) -> None:
    for command in commands:
        kit.node.propose(command, lambda _: None, False)
    kit.run()


def warnings(kit: NodeKit) -> list[str]:
    return [note.text for note in kit.notes if dict(note.fields).get("event") == "pattern.unsupported"]


def test_a_policy_of_an_older_version_loads_matches_nothing_long_and_is_warned_of() -> None:
    kit = NodeKit(MemoryDisk())
    kit.client().declare("a" * 200, durable=True)
    do(kit, SetPolicy(Policy("/", "old", HOSTILE, {"max-length": 1})))
    (said,) = warnings(kit)
    assert "policy 'old' in vhost '/'" in said
    assert "matches no name of more than" in said
    after = NodeKit(kit.disk.crash(lambda n: 0))
    assert warnings(after) == [said]
    queue = after.node.meta.queues["/", "a" * 200]
    assert after.node.vhosts["/"].queues[queue.name].record == queue
    assert after.node.state.policies["/", "old", False].pattern == HOSTILE


def test_permissions_are_looked_at_too() -> None:
    kit = NodeKit(MemoryDisk())
    do(
        kit,
        PutUser(User("eve", salted_hash(b"eve", b"salt"), SHA256)),
        SetPermission(Permission("eve", "/", ".*", HOSTILE, ".*")),
        SetTopicPermission(TopicPermission("eve", "/", "amq.topic", "^{username}", "(")),
    )
    write, read = warnings(kit)
    assert "the permission to write of user 'eve' in vhost '/'" in write
    assert "the permission to read" in read
    assert "matches nothing" in read
    assert not kit.node.access.may("eve", "/", "write", "a" * 200)
    assert kit.node.access.may("eve", "/", "read", "a" * 200)


def test_a_definition_file_with_such_patterns_is_loaded_and_warned_of() -> None:
    kit = AdminKit()
    kit.ask(
        ask.ImportDefinitions(
            definitions={
                "policies": [
                    {"vhost": "/", "name": "old", "pattern": HOSTILE, "definition": {"max-length": 1}}
                ],
                "permissions": [
                    {"user": "guest", "vhost": "/", "configure": ".*", "write": HOSTILE, "read": ".*"}
                ],
            }
        )
    )
    assert kit.node.state.policies["/", "old", False].pattern == HOSTILE
    assert len(warnings(kit)) == 2
    one_more = ask.SetPolicy(vhost="/", name="p", pattern=HOSTILE, definition={"max-length": 1})
    assert "could take for ever" in kit.refusal(one_more)[1]
    rights = ask.SetPermissions(vhost="/", user="guest", configure="", write=HOSTILE, read="")
    assert "could take for ever" in kit.refusal(rights)[1]


def test_what_is_matched_as_it_is_written_is_not_mentioned() -> None:
    kit = NodeKit(MemoryDisk())
    do(kit, SetPolicy(Policy("/", "new", "(a+)+$", {"max-length": 1})))
    assert warnings(kit) == []
