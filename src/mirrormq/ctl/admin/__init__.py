"""`mirrormq admin`: rabbitmqadmin's subcommands, argument forms and output over the HTTP API.

It works with any node it can reach and log in to, RabbitMQ's included; it needs no data folder and no key.
"""
