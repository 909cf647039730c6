# cython: language_level=3, wraparound=False
"""Header tables become maps from names to JSON texts, without a Python object per header.

Every type of RabbitMQ's field tables: numbers, booleans, texts, tables and arrays are what they are in JSON;
a decimal is a number with its digits, a timestamp its seconds, octets (x) are base64, void is null, and so
are NaN and infinities, which JSON does not have. A table that cannot be read gives no headers (null), never
an error: the octets themselves are in the column `headers_raw`. Of two fields with one name the first counts.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcmp, memcpy, strlen

from mirrormq.spark.columns cimport Buffer, Column, text_to

cdef extern from "Python.h":
    char* PyOS_double_to_string(double value, char code, int precision, int flags, int* kind) except NULL
    int Py_DTSF_ADD_DOT_0

cdef enum:
    DEPTH_MAX = 64
    NAMES_COMPARED_MAX = 64


cdef int json_text(Buffer out, Buffer scratch, const uint8_t* p, size_t n) except -1:
    cdef size_t i
    cdef uint8_t c
    cdef char[8] escape
    scratch.n = 0
    text_to(scratch, p, n)
    out.put_byte(c'"')
    for i in range(scratch.n):
        c = scratch.p[i]
        if c == c'"' or c == c'\\':
            out.put_byte(c'\\')
            out.put_byte(c)
        elif c >= 0x20:
            out.put_byte(c)
        elif c == c'\n':
            out.put(b"\\n", 2)
        elif c == c'\r':
            out.put(b"\\r", 2)
        elif c == c'\t':
            out.put(b"\\t", 2)
        elif c == 8:
            out.put(b"\\b", 2)
        elif c == 12:
            out.put(b"\\f", 2)
        else:
            snprintf(escape, 8, "\\u%04x", <unsigned int>c)
            out.put(escape, 6)
    return out.put_byte(c'"')


cdef int json_base64(Buffer out, const uint8_t* p, size_t n) except -1:
    cdef const char* letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    cdef size_t at = 0
    cdef uint32_t three
    out.put_byte(c'"')
    while at < n:
        three = <uint32_t>p[at] << 16
        if at + 1 < n:
            three |= <uint32_t>p[at + 1] << 8
        if at + 2 < n:
            three |= p[at + 2]
        out.put_byte(letters[three >> 18])
        out.put_byte(letters[three >> 12 & 63])
        out.put_byte(letters[three >> 6 & 63] if at + 1 < n else c'=')
        out.put_byte(letters[three & 63] if at + 2 < n else c'=')
        at += 3
    return out.put_byte(c'"')


cdef int json_double(Buffer out, double value) except -1:
    cdef char* digits
    if value != value or value - value != 0:  # NaN and infinities are no JSON
        return out.put(b"null", 4)
    digits = PyOS_double_to_string(value, c'r', 0, Py_DTSF_ADD_DOT_0, NULL)
    out.put(digits, strlen(digits))
    PyMem_Free(digits)
    return 0


cdef int json_decimal(Buffer out, uint8_t scale, uint32_t value) except -1:
    """Its digits, so many of them behind the point."""
    cdef char[16] digits
    cdef int n = snprintf(digits, 16, "%u", value)
    cdef int i
    if scale == 0:
        return out.put(digits, n)
    if n <= scale:
        out.put(b"0.", 2)
        for i in range(scale - n):
            out.put_byte(c'0')
        return out.put(digits, n)
    out.put(digits, n - scale)
    out.put_byte(c'.')
    return out.put(digits + n - scale, scale)


cdef int json_number(Buffer out, uint8_t kind, const uint8_t* p) except -1:
    """A value of fixed size, whose octets are there."""
    cdef char[32] digits
    cdef long long signed_value = 0
    cdef uint32_t word
    cdef uint64_t wide
    cdef float single
    cdef double value
    if kind == c'T':
        return out.put(digits, snprintf(digits, 32, "%llu", <unsigned long long>be64(p)))
    if kind == c'f':
        word = be32(p)
        memcpy(&single, &word, 4)
        return json_double(out, single)
    if kind == c'd':
        wide = be64(p)
        memcpy(&value, &wide, 8)
        return json_double(out, value)
    if kind == c'D':
        return json_decimal(out, p[0], be32(p + 1))
    if kind == c'b':
        signed_value = <int8_t>p[0]
    elif kind == c'B':
        signed_value = p[0]
    elif kind == c's':
        signed_value = <int16_t>(<uint16_t>p[0] << 8 | p[1])
    elif kind == c'u':
        signed_value = <uint16_t>p[0] << 8 | p[1]
    elif kind == c'I':
        signed_value = <int32_t>be32(p)
    elif kind == c'i':
        signed_value = be32(p)
    else:
        signed_value = <int64_t>be64(p)
    return out.put(digits, snprintf(digits, 32, "%lld", signed_value))


cdef inline int fixed_size(uint8_t kind) noexcept:
    if kind == c't' or kind == c'b' or kind == c'B':
        return 1
    if kind == c's' or kind == c'u':
        return 2
    if kind == c'I' or kind == c'i' or kind == c'f':
        return 4
    if kind == c'l' or kind == c'L' or kind == c'd' or kind == c'T':
        return 8
    return 5 if kind == c'D' else (0 if kind == c'V' else -1)


cdef int64_t json_value(Buffer out, Buffer scratch, const uint8_t* p, uint64_t n, int depth) except -2:
    """Write the value whose type tag is at p; the octets it takes with the tag, -1 if it cannot be read."""
    cdef int fixed
    cdef uint64_t size
    if n == 0 or depth > DEPTH_MAX:
        return -1
    fixed = fixed_size(p[0])
    if fixed >= 0:
        if <uint64_t>fixed > n - 1:
            return -1
        if p[0] == c'V':
            out.put(b"null", 4)
        elif p[0] == c't':
            out.put(b"true" if p[1] else b"false", 4 if p[1] else 5)
        else:
            json_number(out, p[0], p + 1)
        return 1 + fixed
    if n < 5:
        return -1
    size = be32(p + 1)
    if size > n - 5:
        return -1
    if p[0] == c'S':
        json_text(out, scratch, p + 5, size)
    elif p[0] == c'x':
        json_base64(out, p + 5, size)
    elif p[0] == c'A' or p[0] == c'F':
        if not json_nested(out, scratch, p + 5, size, p[0] == c'F', depth + 1):
            return -1
    else:
        return -1
    return 5 + size


cdef bint json_nested(Buffer out, Buffer scratch, const uint8_t* p, uint64_t n, bint named,
                      int depth) except *:
    """The content of a table or an array."""
    cdef uint64_t at = 0
    cdef int64_t size
    out.put_byte(c'{' if named else c'[')
    while at < n:
        if at:
            out.put_byte(c',')
        if named:
            if p[at] >= n - at - 1:
                return False
            json_text(out, scratch, p + at + 1, p[at])
            out.put_byte(c':')
            at += 1 + p[at]
        size = json_value(out, scratch, p + at, n - at, depth)
        if size < 0:
            return False
        at += size
    out.put_byte(c'}' if named else c']')
    return True


@cython.final
cdef class Headers:
    """The column of maps: names, and values as JSON."""

    def __cinit__(self):
        self.rows = Column(0)  # its data is not used: it counts entries instead
        self.names = Column(0)
        self.values = Column(0)
        self.scratch = Buffer()

    cdef int put(self, uint64_t row, const uint8_t* p, uint64_t n) except -1:
        """The headers of a row; none if the table cannot be read."""
        cdef uint64_t first = self.names.rows
        cdef size_t names = self.names.data.n
        cdef size_t values = self.values.data.n
        if not self.read(p, n, first):
            self.cut(first, names, values)
            return 0
        # Offsets of a map count entries: what lies in `data` is no octets, but their number.
        self.rows.data.n = first
        self.rows.ready(row)
        self.rows.data.n = self.names.rows
        return self.rows.end_value(row)

    cdef bint read(self, const uint8_t* p, uint64_t n, uint64_t first) except *:
        cdef uint64_t at = 0
        cdef uint64_t entry
        cdef int64_t size
        cdef set seen = None
        while at < n:
            if p[at] >= n - at - 1:
                return False
            entry = self.names.rows
            self.names.put_text(entry, p + at + 1, p[at])
            self.values.ready(entry)
            if entry - first == NAMES_COMPARED_MAX:
                seen = {self.name(i) for i in range(first, entry)}
            at += 1 + p[at]
            values = self.values.data.n
            size = json_value(self.values.data, self.scratch, p + at, n - at, 0)
            if size < 0:
                return False
            at += size
            if self.is_known(first, entry, seen):  # of two fields with one name the first counts
                self.cut(entry, self.start_of(entry), values)
            else:
                self.values.end_value(entry)
        return True

    cdef size_t start_of(self, uint64_t entry) noexcept:
        return (<int32_t*>self.names.fixed.p)[entry]

    cdef bytes name(self, uint64_t entry):
        cdef size_t start = self.start_of(entry)
        return PyBytes_FromStringAndSize(<char*>self.names.data.p + start, self.start_of(entry + 1) - start)

    cdef bint is_known(self, uint64_t first, uint64_t entry, set seen) except *:
        cdef size_t start = self.start_of(entry)
        cdef size_t n = self.start_of(entry + 1) - start
        cdef uint64_t other
        if seen is not None:
            name = self.name(entry)
            if name in seen:
                return True
            seen.add(name)
            return False
        for other in range(first, entry):
            if (self.start_of(other + 1) - self.start_of(other) == n
                    and memcmp(self.names.data.p + self.start_of(other), self.names.data.p + start, n) == 0):
                return True
        return False

    cdef int cut(self, uint64_t entries, size_t names, size_t values) except -1:
        """Forget the entries from this one on."""
        self.names.cut(entries, names)
        return self.values.cut(entries, values)

    cdef tuple take(self, uint64_t rows):
        """(validity, offsets, entries, nulls, names, values), None if no row has headers."""
        cdef uint64_t entries = self.names.rows
        self.rows.data.n = entries
        cdef tuple own = self.rows.take(rows)
        cdef tuple names = self.names.take(entries)
        cdef tuple values = self.values.take(entries)
        return None if own is None else (own[0], own[1], entries, own[3], names, values)
