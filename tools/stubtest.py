"""Check every .pyi of kernel, runtime and spark against the built module with mypy's stubtest.

Cython functions carry less information than Python ones, so what stubtest cannot see in compiled code
(names of positional parameters of C methods, generated members) is allowed by the list below.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ALLOWED = r"""
.*\.__reduce__
.*\.__reduce_cython__
.*\.__setstate__
.*\.__setstate_cython__
.*\.__pyx_capi__
.*\.__pyx_vtable__
.*\.__test__
"""


def main() -> int:
    """Return stubtest's exit code."""
    folders = [Path("src/mirrormq", package) for package in ("kernel", "runtime", "spark")]
    stubs = [stub for folder in folders for stub in sorted(folder.glob("*.pyi"))]
    if not stubs:
        return 0
    modules = [f"mirrormq.{stub.parent.name}.{stub.stem}" for stub in stubs if stub.stem != "__init__"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as allowed:
        allowed.write(ALLOWED)
        allowed.flush()
        command = [
            sys.executable, "-m", "mypy.stubtest", "--concise", "--ignore-unused-allowlist",
            "--ignore-missing-stub", "--allowlist", allowed.name, *modules,
        ]  # fmt: skip
        return subprocess.run(command, env={**os.environ, "MYPYPATH": "src"}, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
