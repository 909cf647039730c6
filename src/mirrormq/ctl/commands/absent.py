"""Commands of RabbitMQ's tools that make no sense here: each answers with one sentence and exit code 64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from mirrormq.ctl.faults import USAGE, Failure
from mirrormq.ctl.registry import CLUSTER, command

_COOKIE = "there is no cookie; nodes share cluster.secret, and tools use the key of a node."
_ERLANG = "there is no Erlang here."

_PLACED = (
    "who has copies of a queue is said by policies: set_policy with ha-mode, ha-params and a pattern for it."
)
_TRACING = (
    "there is no tracing of messages; a queue of one's own that is bound to an exchange gets a copy of what "
    "is published there, and `mirrormq admin get queue=NAME` shows what is in a queue."
)
_STREAMS = "there are no stream queues here."

SENTENCES: dict[str, str] = {
    "add_member": _PLACED,
    "decode": "settings are not encrypted; keep secrets in a file with mode 0600.",
    "delete_member": _PLACED,
    "encode": "settings are not encrypted; keep secrets in a file with mode 0600.",
    "erlang_cookie_hash": _COOKIE,
    "erlang_cookie_sources": _COOKIE,
    "erlang_version": "there is no Erlang here; status shows the version of Python.",
    "eval": _ERLANG,
    "eval_file": _ERLANG,
    "exec": _ERLANG,
    "force_gc": _ERLANG,
    "grow": _PLACED,
    "hipe_compile": _ERLANG,
    "list_ciphers": "settings are not encrypted, so there are no ciphers to list.",
    "list_hashes": "settings are not encrypted, so there are no hashes to list.",
    "maybe_stuck": "there are no Erlang processes; a node is one loop, and check_running asks it.",
    "observer": "there are no Erlang processes to observe; use status, memory_breakdown and the metrics.",
    "peek": "use `mirrormq admin get queue=NAME`, which puts messages back.",
    "post_upgrade": "nothing is left to be done; enable_feature_flag all uses what a new version adds.",
    "reclaim_quorum_memory": "memory is given back by itself; memory_breakdown shows what is used.",
    "remote_shell": _ERLANG,
    "rename_cluster_node": "a node keeps its name; forget it, reset it, and let it join under another one.",
    "resolver_info": "names are resolved by the operating system of the node; resolve_hostname asks it.",
    "restart_vhost": "a virtual host has no process of its own that could need a restart; "
    "`list_queues name state` shows whether a queue of it does not work.",
    "runtime_thread_stats": "there is no Erlang runtime; the metrics tell how busy a node is.",
    "schema_info": "there is no Mnesia here; `export_definitions` shows what is stored.",
    "shrink": _PLACED,
    "stream_status": _STREAMS,
    "trace_off": _TRACING,
    "trace_on": _TRACING,
    "update_cluster_nodes": "a node learns who the others are when it joins and at every start.",
}


def _refusal(name: str, sentence: str) -> Callable[..., None]:
    # Whatever it is given, options included: the sentence is about the command.
    def refuse(_words: Annotated[list[str] | None, typer.Argument(metavar="...")] = None) -> None:
        raise Failure(f"{name}: {sentence}", USAGE)

    refuse.__doc__ = f"Not here: {sentence}"
    return refuse


for _name, _sentence in SENTENCES.items():
    command(CLUSTER, name=_name, is_hidden=True)(_refusal(_name, _sentence))
