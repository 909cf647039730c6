# cython: language_level=3
"""CRC32C (Castagnoli) of a buffer: the checksum of every record on disk.

Uses the processor's instruction where it has one, a table otherwise; both give the same value.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint32_t

cdef extern from *:
    """
    #include <stdint.h>
    #include <stddef.h>
    #include <string.h>
    static uint32_t mq_crc_table[256];
    static int mq_crc_ready = 0;
    static void mq_crc_init(void) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;
            for (int k = 0; k < 8; k++) c = (c & 1) ? (c >> 1) ^ 0x82f63b78u : c >> 1;
            mq_crc_table[i] = c;
        }
        mq_crc_ready = 1;
    }
    static uint32_t mq_crc_soft(uint32_t crc, const uint8_t *p, size_t n) {
        if (!mq_crc_ready) mq_crc_init();
        while (n--) crc = (crc >> 8) ^ mq_crc_table[(crc ^ *p++) & 0xff];
        return crc;
    }
    #if defined(__x86_64__) && defined(__GNUC__)
    #include <nmmintrin.h>
    __attribute__((target("sse4.2")))
    static uint32_t mq_crc_hard(uint32_t crc, const uint8_t *p, size_t n) {
        uint64_t c = crc, word;
        while (n >= 8) { memcpy(&word, p, 8); c = _mm_crc32_u64(c, word); p += 8; n -= 8; }
        while (n--) c = _mm_crc32_u8((uint32_t)c, *p++);
        return (uint32_t)c;
    }
    static int mq_crc_has_hard(void) { return __builtin_cpu_supports("sse4.2"); }
    #else
    static uint32_t mq_crc_hard(uint32_t crc, const uint8_t *p, size_t n) { return mq_crc_soft(crc, p, n); }
    static int mq_crc_has_hard(void) { return 0; }
    #endif
    """
    uint32_t mq_crc_soft(uint32_t crc, const uint8_t* p, size_t n) noexcept nogil
    uint32_t mq_crc_hard(uint32_t crc, const uint8_t* p, size_t n) noexcept nogil
    int mq_crc_has_hard()

cdef bint HARDWARE = mq_crc_has_hard()


cdef uint32_t crc_of(const uint8_t* p, size_t n) noexcept:
    """CRC32C of n bytes, for the rest of the kernel."""
    if HARDWARE:
        return mq_crc_hard(0xffffffffu, p, n) ^ 0xffffffffu
    return mq_crc_soft(0xffffffffu, p, n) ^ 0xffffffffu


def crc32c(data, uint32_t seed=0, *, bint software=False) -> int:
    """CRC32C of `data`, continuing from `seed`; `software` forces the table (for tests)."""
    cdef Py_buffer view
    cdef uint32_t crc = seed ^ 0xffffffffu
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if HARDWARE and not software:
            crc = mq_crc_hard(crc, <const uint8_t*>view.buf, <size_t>view.len)
        else:
            crc = mq_crc_soft(crc, <const uint8_t*>view.buf, <size_t>view.len)
    finally:
        PyBuffer_Release(&view)
    return crc ^ 0xffffffffu
