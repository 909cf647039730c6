"""The one way the runtime says that a node cannot start: a sentence for a person."""


class StartError(Exception):
    """The node cannot start. The message is one sentence that names the cause and the cure."""


class ConfigError(StartError):
    """A setting is unknown or wrong. The message names where it was read and what is meant instead."""
