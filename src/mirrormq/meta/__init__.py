"""Definitions: vhosts, users, permissions, exchanges, queues, bindings, policies. The only truth about them.

`state` is a pure machine of `commands` over `records`; `store` makes its commands durable; `broker` derives
its routing tables from `MetaState.watch`. Nothing here reads a clock, a file or a random number.
"""
