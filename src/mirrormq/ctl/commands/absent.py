"""rabbitmqctl's commands that this node does not have: each answers with one sentence and exit code 64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from mirrormq.ctl.faults import USAGE, Failure
from mirrormq.ctl.registry import CLUSTER, command

_ERLANG = "there is no Erlang here."

SENTENCES: dict[str, str] = {
    "autocomplete": "shell completion comes in a later version.",
    "decode": "settings are not encrypted; keep secrets in a file with mode 0600.",
    "encode": "settings are not encrypted; keep secrets in a file with mode 0600.",
    "eval": _ERLANG,
    "eval_file": _ERLANG,
    "exec": _ERLANG,
    "force_gc": _ERLANG,
    "hipe_compile": _ERLANG,
    "list_ciphers": "settings are not encrypted, so there are no ciphers to list.",
    "list_hashes": "settings are not encrypted, so there are no hashes to list.",
    "list_node_auth_attempt_stats": "attempts to log in are in the node's log.",
    "rename_cluster_node": "a node keeps its name; forget it, reset it, and let it join under another one.",
    "report": "use `status`, `environment` and the list_* commands.",
    "restart_vhost": "a virtual host has no process of its own that could need a restart.",
    "resume_listeners": "listeners cannot be suspended in this version.",
    "rotate_logs": "log files are rotated by size, and by SIGHUP.",
    "schema_info": "there is no Mnesia here; `export_definitions` shows what is stored.",
    "set_disk_free_limit": "set disk_free_limit in the configuration and restart the node.",
    "set_log_level": "set log.level in the configuration and restart the node.",
    "set_vhost_tags": "use `add_vhost NAME --tags a,b` when the virtual host is made.",
    "set_vm_memory_high_watermark": "set vm_memory_high_watermark in the configuration and restart the node.",
    "suspend_listeners": "listeners cannot be suspended in this version.",
    "trace_off": "message tracing does not exist yet.",
    "trace_on": "message tracing does not exist yet.",
    "update_cluster_nodes": "a node learns who the others are when it joins and at every start.",
    "wait": "use `mirrormqctl await_startup`.",
}


def _refusal(name: str, sentence: str) -> Callable[..., None]:
    def refuse(_words: Annotated[list[str] | None, typer.Argument()] = None) -> None:
        raise Failure(f"{name}: {sentence}", USAGE)

    refuse.__doc__ = f"Not here: {sentence}"
    return refuse


for _name, _sentence in SENTENCES.items():
    command(CLUSTER, name=_name, is_hidden=True)(_refusal(_name, _sentence))
