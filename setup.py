"""Build the compiled parts: one extension module per .pyx of the packages kernel, runtime and spark.

Everything else about the package stands in pyproject.toml. Environment switches:
MIRRORMQ_SANITIZE=address   build for AddressSanitizer (debug symbols, light optimisation)
MIRRORMQ_KERNEL=built       compile nothing: take the modules that were built in place (tools/setup.sh)
MIRRORMQ_CYTHON_TRACE=1     keep line tracing in the generated code (profiles and coverage of the kernel)
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

JOBS = os.cpu_count() or 1
SANITIZE = os.environ.get("MIRRORMQ_SANITIZE", "")
TRACE = os.environ.get("MIRRORMQ_CYTHON_TRACE", "") == "1"
IS_BUILT = os.environ.get("MIRRORMQ_KERNEL", "") == "built"


class KernelBuild(build_ext):
    """Translates and compiles the modules side by side, and only when something is to be built."""

    def finalize_options(self) -> None:
        if IS_BUILT:
            super().finalize_options()
            return
        if self.parallel is None:
            self.parallel = JOBS
        self.distribution.ext_modules = cythonize(
            self.distribution.ext_modules,
            build_dir="build/sanitize" if SANITIZE else "build/cython",
            include_path=["src"],
            nthreads=JOBS,
            compiler_directives={"language_level": "3", "linetrace": TRACE},
        )
        super().finalize_options()

    def build_extension(self, ext: Extension) -> None:
        if not IS_BUILT:
            super().build_extension(ext)
            return
        target = Path(self.get_ext_fullpath(ext.name)).absolute()
        source = Path("src", *ext.name.split(".")[:-1], target.name).absolute()
        if target != source:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def compile_flags() -> tuple[list[str], list[str]]:
    """Flags for the compiler and for the linker."""
    if SANITIZE == "":
        return ["-O3", "-fno-strict-aliasing", "-Wno-unreachable-code"], []
    if SANITIZE != "address":
        raise SystemExit(f"MIRRORMQ_SANITIZE={SANITIZE}: only 'address' is known")
    sanitize = ["-fsanitize=address", "-fno-omit-frame-pointer", "-g"]
    return [*sanitize, "-O1", "-Wno-unreachable-code"], sanitize


def extensions() -> list[Extension]:
    """One extension per .pyx; a C file or header of the same folder is found by include path."""
    compile_args, link_args = compile_flags()
    macros = [("CYTHON_TRACE", "1")] if TRACE else []
    return [
        Extension(
            ".".join(source.with_suffix("").parts[1:]),
            [source.as_posix()],
            include_dirs=[source.parent.as_posix()],
            depends=[other.as_posix() for other in sorted(source.parent.glob("*.h"))],
            define_macros=macros,
            extra_compile_args=compile_args,
            extra_link_args=link_args,
        )
        for package in ("kernel", "runtime", "spark")
        for source in sorted(Path("src").glob(f"mirrormq/{package}/*.pyx"))
    ]


setup(cmdclass={"build_ext": KernelBuild}, ext_modules=extensions())
