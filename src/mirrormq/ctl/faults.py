"""How a command fails: an exception with the exit code (sysexits.h) rabbitmqctl uses for the same case."""

OK = 0
USAGE = 64
DATA = 65
NO_INPUT = 66
NO_USER = 67
UNAVAILABLE = 69
SOFTWARE = 70
CANNOT_CREATE = 73
NO_PERMISSION = 77


class Failure(Exception):
    """The command did not succeed: a text that names cause and cure, and the exit code."""

    def __init__(self, text: str, code: int = UNAVAILABLE, kind: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.code = code
        self.kind = kind


class Misuse(Failure):
    """The command line itself is wrong; the command's usage is shown with it."""

    def __init__(self, text: str) -> None:
        super().__init__(text, USAGE)
