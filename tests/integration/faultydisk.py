"""Calls that fail on demand, below the node: a library that stands before the C library's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <sys/types.h>
#include <unistd.h>

/* Does a file of this name lie in the folder of switches, and has the descriptor's file this in its name? */
static int fails(const char *what, int fd, const char *of) {
    char name[4096], link[64];
    const char *folder = getenv("FAULTY_DISK");
    snprintf(name, sizeof name, "%s/%s", folder ? folder : "", what);
    if (!folder || access(name, F_OK) != 0)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, name, sizeof name - 1);
    name[size < 0 ? 0 : size] = 0;
    return strstr(name, of) != NULL;
}

ssize_t pread(int fd, void *data, size_t size, off_t offset) {
    ssize_t (*real)(int, void *, size_t, off_t) = dlsym(RTLD_NEXT, "pread");
    if (fails("pread", fd, "/journal/")) { errno = EIO; return -1; }
    return real(fd, data, size, offset);
}
ssize_t pread64(int fd, void *data, size_t size, off_t offset) { return pread(fd, data, size, offset); }

int fdatasync(int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync");
    if (fails("fdatasync", fd, "/journal/")) { errno = EIO; return -1; }
    return real(fd);
}

int fallocate(int fd, int mode, off_t offset, off_t size) {
    int (*real)(int, int, off_t, off_t) = dlsym(RTLD_NEXT, "fallocate");
    if (fails("reserve", fd, "/data/reserve")) { errno = ENOSPC; return -1; }
    return real(fd, mode, offset, size);
}
int fallocate64(int fd, int mode, off_t offset, off_t size) { return fallocate(fd, mode, offset, size); }

int posix_fallocate(int fd, off_t offset, off_t size) {
    int (*real)(int, off_t, off_t) = dlsym(RTLD_NEXT, "posix_fallocate");
    if (fails("reserve", fd, "/data/reserve")) return ENOSPC;
    return real(fd, offset, size);
}
int posix_fallocate64(int fd, off_t offset, off_t size) { return posix_fallocate(fd, offset, size); }
"""


class FaultyDisk:
    """Switches for the faults of a node started with `environment`."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler to build the failing calls with")
        self._folder = folder
        folder.mkdir()
        library = folder / "faulty.so"
        words = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(library), "-ldl"]
        subprocess.run(words, input=SOURCE, text=True, check=True)
        self.environment = {"LD_PRELOAD": str(library), "FAULTY_DISK": str(folder)}

    def fail(self, call: str) -> None:
        """From now on this call fails on journal files; `reserve`: there is never room for the reserve."""
        (self._folder / call).touch()

    def mend(self, call: str) -> None:
        """It succeeds again."""
        (self._folder / call).unlink()
