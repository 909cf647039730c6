"""One node: composes metadata, broker and queues behind plain inputs and one outbox of effects, without any
I/O.

`node` takes the inputs, `effects` is the outbox, `admin` carries out `requests`, `report` reads what is
there.
"""
