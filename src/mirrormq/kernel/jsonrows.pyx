# cython: language_level=3
"""The elements of a JSON array, one at a time.

Guarantee: if every element given out is JSON, they are the elements of the array, in order, and the array was
JSON; of what is no array an error is raised, at the latest where it ends. Nothing else is checked here:
whoever decodes an element sees what is wrong in it.

A file of definitions has a hundred thousand rows in one array. A decoder takes it in one go, and holds the
loop meanwhile; this goes on where it was for as long as somebody asks.
"""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t


class NoArray(ValueError):
    """What was to be taken apart is no JSON array."""


cdef Py_ssize_t behind_space(const uint8_t* p, Py_ssize_t at, Py_ssize_t n) noexcept:
    while at < n and p[at] in (0x20, 0x09, 0x0A, 0x0D):
        at += 1
    return at


cdef Py_ssize_t behind_text(const uint8_t* p, Py_ssize_t at, Py_ssize_t n) noexcept:
    """Behind the quote that ends a text; `at` is behind the one that begins it."""
    while at < n:
        if p[at] == c'"':
            return at + 1
        at += 2 if p[at] == c'\\' else 1
    return n


cdef Py_ssize_t end_of_element(const uint8_t* p, Py_ssize_t at, Py_ssize_t n) noexcept:
    """Where the comma or bracket behind an element is; n if there is none."""
    cdef Py_ssize_t depth = 0
    cdef uint8_t c
    while at < n:
        c = p[at]
        if c == c'"':
            at = behind_text(p, at + 1, n)
            continue
        if c == c'[' or c == c'{':
            depth += 1
        elif depth == 0 and (c == c',' or c == c']'):
            return at
        elif c == c']' or c == c'}':
            depth -= 1
        at += 1
    return n


def elements(const uint8_t[::1] data not None):
    """Give the elements out as bytes."""
    cdef Py_ssize_t n = data.shape[0]
    cdef Py_ssize_t at = behind_space(&data[0], 0, n) if n else 0
    cdef Py_ssize_t end
    cdef bint is_last = False
    if at == n or data[at] != c'[':
        raise NoArray("no array")
    at += 1
    end = behind_space(&data[0], at, n)
    if end < n and data[end] == c']':
        is_last = True
    while not is_last:
        end = end_of_element(&data[0], at, n)
        if end == n:
            raise NoArray("an array without an end")
        yield PyBytes_FromStringAndSize(<const char*>&data[at], end - at)
        is_last = data[end] == c']'
        at = end + 1
    if behind_space(&data[0], end + 1, n) != n:
        raise NoArray("something behind the array")
