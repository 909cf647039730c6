"""How `mirrormq admin` fails: with 1 and a sentence, or as rabbitmqadmin with 2 for unknown options."""

FAILED = 1
BAD_OPTION = 2


class Misused(Exception):
    """The line makes no sense; how to get help is shown with it."""


class Refusal(Exception):
    """The server, or a file, said no."""
