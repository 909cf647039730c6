# cython: language_level=3
"""CRC32C (Castagnoli) of a buffer: the checksum of every record on disk.

Uses the processor's instruction where it has one, a table otherwise; both give the same value. The
instruction gives its result after three cycles but can begin anew in each, so long buffers are taken as three
strands side by side; what a strand gave is carried over those behind it by tables of what so many zero bytes
make of it.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint32_t

cdef extern from *:
    """
    #include <stdint.h>
    #include <stddef.h>
    #include <string.h>
    static uint32_t mq_crc_table[256];
    static void mq_crc_init(void) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;
            for (int k = 0; k < 8; k++) c = (c & 1) ? (c >> 1) ^ 0x82f63b78u : c >> 1;
            mq_crc_table[i] = c;
        }
    }
    static uint32_t mq_crc_soft(uint32_t crc, const uint8_t *p, size_t n) {
        while (n--) crc = (crc >> 8) ^ mq_crc_table[(crc ^ *p++) & 0xff];
        return crc;
    }
    #if defined(__x86_64__) && defined(__GNUC__)
    #include <nmmintrin.h>
    #define MQ_LONG 1024
    #define MQ_SHORT 128
    static uint32_t mq_over_long[4][256], mq_over_short[4][256];
    static void mq_over_init(uint32_t over[4][256], size_t zeros) {
        for (int bit = 0; bit < 32; bit++) {
            uint32_t c = 1u << bit;
            for (size_t i = 0; i < zeros; i++) c = (c >> 8) ^ mq_crc_table[c & 0xff];
            for (int b = 0; b < 256; b++) if (b >> (bit & 7) & 1) over[bit >> 3][b] ^= c;
        }
    }
    static uint32_t mq_over(uint32_t over[4][256], uint32_t c) {
        return over[0][c & 0xff] ^ over[1][c >> 8 & 0xff] ^ over[2][c >> 16 & 0xff] ^ over[3][c >> 24];
    }
    static void mq_crc_begin(void) {
        mq_crc_init();
        mq_over_init(mq_over_long, MQ_LONG);
        mq_over_init(mq_over_short, MQ_SHORT);
    }
    __attribute__((target("sse4.2")))
    static uint64_t mq_strands(uint64_t c, const uint8_t *p, size_t strand, uint32_t over[4][256]) {
        uint64_t c1 = 0, c2 = 0, word;
        for (size_t i = 0; i < strand; i += 8) {
            memcpy(&word, p + i, 8); c = _mm_crc32_u64(c, word);
            memcpy(&word, p + strand + i, 8); c1 = _mm_crc32_u64(c1, word);
            memcpy(&word, p + 2 * strand + i, 8); c2 = _mm_crc32_u64(c2, word);
        }
        return mq_over(over, mq_over(over, (uint32_t)c) ^ (uint32_t)c1) ^ (uint32_t)c2;
    }
    __attribute__((target("sse4.2")))
    static uint32_t mq_crc_hard(uint32_t crc, const uint8_t *p, size_t n) {
        uint64_t c = crc, word;
        for (; n >= 3 * MQ_LONG; p += 3 * MQ_LONG, n -= 3 * MQ_LONG)
            c = mq_strands(c, p, MQ_LONG, mq_over_long);
        for (; n >= 3 * MQ_SHORT; p += 3 * MQ_SHORT, n -= 3 * MQ_SHORT)
            c = mq_strands(c, p, MQ_SHORT, mq_over_short);
        while (n >= 8) { memcpy(&word, p, 8); c = _mm_crc32_u64(c, word); p += 8; n -= 8; }
        while (n--) c = _mm_crc32_u8((uint32_t)c, *p++);
        return (uint32_t)c;
    }
    static int mq_crc_has_hard(void) { return __builtin_cpu_supports("sse4.2"); }
    #else
    static void mq_crc_begin(void) { mq_crc_init(); }
    static uint32_t mq_crc_hard(uint32_t crc, const uint8_t *p, size_t n) { return mq_crc_soft(crc, p, n); }
    static int mq_crc_has_hard(void) { return 0; }
    #endif
    """
    uint32_t mq_crc_soft(uint32_t crc, const uint8_t* p, size_t n) noexcept nogil
    uint32_t mq_crc_hard(uint32_t crc, const uint8_t* p, size_t n) noexcept nogil
    int mq_crc_has_hard()
    void mq_crc_begin()

mq_crc_begin()
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
