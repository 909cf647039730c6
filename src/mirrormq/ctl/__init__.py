"""`mirrormqctl`: rabbitmqctl's commands, argument forms and texts for a MirrorMQ node.

`main` splits off the options every command takes, `commands/` holds one file per noun, `render` prints.
It talks to the node only through `mirrormq.client.admin`: a node of another version or machine will do.
"""
