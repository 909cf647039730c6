"""The HTTP admin API in the node's own loop: RabbitMQ 3.10's paths, JSON and status codes for what exists here.

`server.start` is imported only when the AMQP listeners are bound, since aiohttp takes a while to import. Reading goes
through `node.report`, changing through the node's admin input; lists are built in slices, so that no request holds
the loop. `routes/` has a file per kind of resource.
"""
