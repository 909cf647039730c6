"""One entry of a definition file, read field by field; what does not fit is named by entry and field."""

import base64
import binascii
from collections.abc import Callable, Iterator
from typing import Any

from mirrormq.base.errors import AmqpError
from mirrormq.meta.patterns import complaint
from mirrormq.meta.records import Table
from mirrormq.wire.table import encode_table


class DefinitionError(Exception):
    """A definition file cannot be imported. Its text names the entry, the field and what is wrong."""


_MISSING: Any = object()


class Entry:
    """Reads the fields of one JSON object. Fields nobody asks for are ignored, as RabbitMQ ignores them."""

    def __init__(self, section: str, position: int, raw: Table, vhost: str | None = None) -> None:
        """`vhost` stands in for the field of that name when a file is imported into one vhost."""
        self._raw = raw if vhost is None else {**raw, "vhost": vhost}
        label = raw.get("name", raw.get("user", raw.get("source")))
        shown = f" '{label}'" if isinstance(label, str) else ""
        self._where = f"{section}[{position}]{shown}"

    def has(self, field: str) -> bool:
        """Whether a field is there and not null."""
        return self._raw.get(field) is not None

    def text(self, field: str, default: str = _MISSING) -> str:
        """A string."""
        value = self._get(field, default)
        if not isinstance(value, str):
            raise self.error(field, f"must be a string, not {_kind(value)}")
        return value

    def pattern(self, field: str) -> str:
        """A regular expression. One that takes too long to match is loaded all the same, and warned of."""
        value = self.text(field)
        wrong = complaint(value, is_stored=True)
        if wrong is not None:
            raise self.error(field, wrong)
        return value

    def flag(self, field: str, default: bool) -> bool:
        """True or false."""
        value = self._get(field, default)
        if not isinstance(value, bool):
            raise self.error(field, f"must be true or false, not {_kind(value)}")
        return value

    def integer(self, field: str, default: int = _MISSING) -> int:
        """A whole number."""
        value = self._get(field, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(field, f"must be a whole number, not {_kind(value)}")
        return value

    def any(self, field: str) -> Any:
        """Any JSON value."""
        return self._get(field, _MISSING)

    def object(self, field: str, default: Table = _MISSING) -> Table:
        """A JSON object."""
        value = self._get(field, default)
        if not isinstance(value, dict):
            raise self.error(field, f"must be an object, not {_kind(value)}")
        return value

    def arguments(self) -> Table:
        """An AMQP field table; RabbitMQ writes `[]` for an empty one."""
        value = self._raw.get("arguments")
        if value is None or value == []:
            return {}
        if not isinstance(value, dict):
            raise self.error("arguments", f"must be an object, not {_kind(value)}")
        try:
            encode_table(value)
        except AmqpError as error:
            raise self.error("arguments", f"cannot be a field table: {error.text}") from error
        return value

    def tags(self, field: str, default: tuple[str, ...] = _MISSING) -> tuple[str, ...]:
        """A list of words, or a string with commas between them."""
        value = self._get(field, default)
        if isinstance(value, str):
            value = value.split(",")
        if not isinstance(value, list | tuple) or not all(isinstance(tag, str) for tag in value):
            raise self.error(field, "must be a list of strings or a string with commas")
        return tuple(tag.strip() for tag in value if tag.strip())

    def limits(self, field: str, names: tuple[str, ...]) -> dict[str, int]:
        """Limits by name; RabbitMQ writes `[]` for none."""
        value = self._raw.get(field)
        if value is None or value == []:
            return {}
        found = self.inner(field)
        for name in found._raw:
            if name not in names:
                raise self.error(field, f"has no limit '{name}'; there are {' and '.join(names)}")
        return {name: found.integer(name) for name in found._raw}

    def base64(self, field: str) -> bytes:
        """Bytes in base64."""
        try:
            return base64.b64decode(self.text(field), validate=True)
        except (binascii.Error, ValueError):
            raise self.error(field, "is not valid base64") from None

    def inner(self, field: str) -> "Entry":
        """The fields of an object within this entry."""
        inner = Entry("", 0, self.object(field))
        inner._where = f"{self._where} {field}"
        return inner

    def error(self, field: str, words: str) -> DefinitionError:
        """Say what is wrong with a field."""
        return DefinitionError(f"{self._where}: {field} {words}")

    def refusal(self, words: str) -> DefinitionError:
        """Say what is wrong with the entry as a whole."""
        return DefinitionError(f"{self._where}: {words}")

    def _get(self, field: str, default: Any) -> Any:
        value = self._raw.get(field)
        if value is not None:
            return value
        if default is _MISSING:
            raise self.error(field, "is missing")
        return default


def entries(definitions: Table, section: str, vhost: str | None = None) -> Iterator[Entry]:
    """The entries of one section of a file; a section that is not there has none."""
    found = definitions.get(section)
    if found is None:
        return
    if not isinstance(found, list):
        raise DefinitionError(f"{section} must be a list, not {_kind(found)}")
    for position, raw in enumerate(found):
        if not isinstance(raw, dict):
            raise DefinitionError(f"{section}[{position}] must be an object, not {_kind(raw)}")
        yield Entry(section, position, raw, vhost)


def _kind(value: Any) -> str:
    names: tuple[tuple[Callable[[Any], bool], str], ...] = (
        (lambda v: v is None, "null"),
        (lambda v: isinstance(v, bool), "true or false"),
        (lambda v: isinstance(v, str), "a string"),
        (lambda v: isinstance(v, int | float), "a number"),
        (lambda v: isinstance(v, list), "a list"),
        (lambda v: isinstance(v, dict), "an object"),
    )
    return next((name for is_kind, name in names if is_kind(value)), type(value).__name__)
