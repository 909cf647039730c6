# cython: language_level=3
"""Mistakes on purpose, of the kinds Cython lets through: the harness must catch each before a run counts."""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport Py_INCREF
from libc.stdlib cimport free, malloc


cdef class Thing:
    """An object the garbage collector knows, so the leak checker finds it reachable."""
    cdef object other


def over_read(bytes data not None) -> int:
    """The byte behind a bytes object's own end (and behind the NUL that CPython keeps there)."""
    cdef const unsigned char* p = <const unsigned char*>PyBytes_AS_STRING(data)
    return p[PyBytes_GET_SIZE(data) + 1]


def use_after_free() -> int:
    cdef unsigned char* p = <unsigned char*>malloc(64)
    p[0] = 1
    free(p)
    return p[0]


def leak_memory() -> int:
    """An allocation nobody frees."""
    cdef unsigned char* p = <unsigned char*>malloc(48)
    p[0] = 7
    return p[0]


def leak_bytes() -> int:
    """A reference count that never falls: the object is unreachable and stays."""
    cdef bytes lost = PyBytes_FromStringAndSize(NULL, 500)
    Py_INCREF(lost)
    return 500


def leak_thing() -> int:
    """The same with an object of the garbage collector."""
    cdef Thing lost = Thing()
    Py_INCREF(lost)
    return 1


def hang() -> None:
    """Never returns and never lets Python look at signals."""
    cdef volatile int on = 1
    while on:
        pass
