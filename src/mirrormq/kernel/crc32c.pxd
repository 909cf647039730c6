# CRC32C for the rest of the kernel (see crc32c.pyx).
from libc.stdint cimport uint8_t, uint32_t

cdef uint32_t crc_of(const uint8_t* p, size_t n) noexcept
