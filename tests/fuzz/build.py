"""Builds the kernel, and the planted mistakes, for AddressSanitizer into a folder of their own.

The ordinary build in src/ is not touched. `MissingTools` says in one sentence what a machine lacks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "sanitize"
LIBRARY = FOLDER / "lib"
KERNEL = ROOT / "src" / "mirrormq" / "kernel"
BUILD_S = 600.0

PLANTED_SETUP = """
from Cython.Build import cythonize
from setuptools import Extension, setup
flags = ["-fsanitize=address", "-fno-omit-frame-pointer", "-g"]
module = Extension("planted", [{source!r}], extra_compile_args=[*flags, "-O1"], extra_link_args=flags)
setup(ext_modules=cythonize([module], build_dir={folder!r}, quiet=True))
"""


class MissingTools(Exception):
    """The machine cannot build or run sanitized code; the text says what to install."""


def compiler() -> str:
    found = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if found is None:
        raise MissingTools("no C compiler: install gcc")
    return found


def runtime() -> Path:
    """AddressSanitizer's library of the compiler, to be loaded before Python."""
    asked = subprocess.run(
        [compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True, check=False
    )
    path = Path(asked.stdout.strip())
    if not path.is_absolute() or not path.exists():
        raise MissingTools("no AddressSanitizer runtime: install gcc's libasan")
    return path


def build() -> Path:
    """The folder to put first in the path of a sanitized process; built again only where sources changed."""
    runtime()
    if not _current():
        _run([sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", str(LIBRARY),
              "--build-temp", str(FOLDER / "objects")], {"MIRRORMQ_SANITIZE": "address"})  # fmt: skip
        script = FOLDER / "planted_setup.py"
        source = Path(__file__).with_name("planted.pyx").relative_to(ROOT)
        script.write_text(PLANTED_SETUP.format(source=str(source), folder=str(FOLDER / "planted")))
        _run([sys.executable, str(script), "--quiet", "build_ext", "--build-lib", str(LIBRARY),
              "--build-temp", str(FOLDER / "objects")], {})  # fmt: skip
        (LIBRARY / "stamp").write_text(_fingerprint())
    return LIBRARY


def _sources() -> list[Path]:
    kernel = [path for path in KERNEL.iterdir() if path.suffix in {".pyx", ".pxd", ".h"}]
    return sorted([*kernel, Path(__file__).with_name("planted.pyx"), ROOT / "setup.py"])


def _fingerprint() -> str:
    return "\n".join(f"{path.name} {path.stat().st_mtime_ns} {path.stat().st_size}" for path in _sources())


def _current() -> bool:
    stamp = LIBRARY / "stamp"
    return stamp.exists() and stamp.read_text() == _fingerprint()


def _run(command: list[str], extra: dict[str, str]) -> None:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | extra,
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the sanitized build failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
