"""The elements of a JSON array, one at a time."""

from collections.abc import Iterator

class NoArray(ValueError): ...

def elements(data: bytes | bytearray | memoryview) -> Iterator[bytes]: ...
