# shellcheck shell=bash
# Sourced by ./run and ./test: makes .venv usable, or says in one sentence what is missing and how to get it.
#   prepare run    the broker and what it needs
#   prepare dev    that and the tools of the tests
#   prepare_spark  Spark, which is large: only for what needs it
# All do nothing but compare check sums when the sources have not changed since the last time.

VENV=.venv
say() { printf '%s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

prepare() {
    local kind=$1
    mkdir -p build
    if command -v flock >/dev/null 2>&1; then
        # Two commands started together must not install into the same folder at the same time.
        exec 9>build/.setup.lock
        flock 9
    fi
    ensure_venv
    ensure_packages "$kind"
    ensure_kernel
    if [ -n "${PYTHONDONTWRITEBYTECODE:-}" ]; then
        # Every start of a node would compile every module: half of its time.
        "$VENV/bin/python" -m compileall -q src tests >/dev/null 2>&1 || true
    fi
    exec 9>&-
}

is_recent_python() {
    "$1" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14 python}; do
        if command -v "$candidate" >/dev/null 2>&1 && is_recent_python "$candidate"; then
            printf '%s' "$candidate"
            return
        fi
    done
    local found
    found=$("${PYTHON:-python3}" --version 2>/dev/null || echo "none")
    fail "MirrorMQ needs Python 3.11 or newer (found: $found): install it, e.g. 'sudo apt-get install python3 python3-venv python3-dev'," \
        "or name one, e.g. 'PYTHON=/path/to/python3.12 $0'."
}

ensure_venv() {
    if [ -x "$VENV/bin/python" ] && is_recent_python "$VENV/bin/python"; then
        return
    fi
    local python
    python=$(find_python) || exit 1
    "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
        fail "Python's venv module is missing: 'sudo apt-get install python3-venv', then run $0 again."
    say "Creating $VENV with $("$python" --version) ..."
    rm -rf "$VENV"
    "$python" -m venv "$VENV" || fail "Could not create $VENV: see the message above."
}

# Changes to what is installed: dependencies, entry points, the interpreter, or the place of the clone.
package_sum() {
    { cat pyproject.toml setup.py; "$VENV/bin/python" --version; pwd; } | cksum
}

prepare_spark() {
    local sum
    sum=$("$VENV/bin/python" tools/requirements.py spark | cksum)
    if is_current "$VENV/.mirrormq-spark" "$sum"; then return; fi
    say "Installing Spark into $VENV (about 900 MB on disk) ..."
    "$VENV/bin/python" tools/requirements.py spark >build/requirements-spark.txt || return 1
    "$VENV/bin/python" -m pip install -qq --disable-pip-version-check -r build/requirements-spark.txt || return 1
    printf '%s' "$sum" >"$VENV/.mirrormq-spark"
}

kernel_sum() {
    { find src -type f \( -name '*.pyx' -o -name '*.pxd' -o -name '*.h' \) | LC_ALL=C sort | xargs cat
      cat setup.py; "$VENV/bin/python" --version; } | cksum
}

is_current() { # stamp sum
    [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]
}

ensure_packages() {
    local kind=$1 sum
    sum=$(package_sum)
    if is_current "$VENV/.mirrormq-dev" "$sum"; then return; fi
    if [ "$kind" = run ] && is_current "$VENV/.mirrormq-run" "$sum"; then return; fi
    ensure_compiler
    say "Installing what MirrorMQ needs into $VENV ..."
    # The requirements are read from pyproject.toml here, because older pips know no dependency groups.
    "$VENV/bin/python" tools/requirements.py "$kind" >build/requirements.txt || exit 1
    "$VENV/bin/python" -m pip install -qq --disable-pip-version-check -r build/requirements.txt ||
        fail "pip could not install the requirements (listed in build/requirements.txt): see its message above; a package index must be reachable."
    ensure_kernel
    # pip would compile the kernel once more, elsewhere and from nothing.
    MIRRORMQ_KERNEL=built "$VENV/bin/python" -m pip install -q --disable-pip-version-check --no-build-isolation \
        --no-deps -e . >build/install.log 2>&1 ||
        { tail -n 25 build/install.log >&2; fail "The package could not be installed: see build/install.log."; }
    printf '%s' "$sum" >"$VENV/.mirrormq-$kind"
}

ensure_kernel() {
    local sum source
    sum=$(kernel_sum)
    if is_current "$VENV/.mirrormq-kernel" "$sum" && has_modules; then return; fi
    ensure_compiler
    say "Building the kernel ..."
    "$VENV/bin/python" setup.py build_ext --inplace >build/kernel.log 2>&1 ||
        { tail -n 25 build/kernel.log >&2; fail "The kernel could not be compiled: see build/kernel.log."; }
    printf '%s' "$sum" >"$VENV/.mirrormq-kernel"
}

has_modules() {
    local source suffix
    suffix=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
    for source in src/mirrormq/*/*.pyx; do
        [ ! -e "$source" ] || [ -e "${source%.pyx}$suffix" ] || return 1
    done
}

ensure_compiler() {
    local cc include
    cc=${CC:-$("$VENV/bin/python" -c 'import sysconfig; print((sysconfig.get_config_var("CC") or "cc").split()[0])')}
    printf '#include <stdio.h>\n' | ${cc} -E -x c - >/dev/null 2>&1 ||
        fail "No working C compiler ('$cc'): 'sudo apt-get install build-essential' (Debian, Ubuntu) or 'sudo dnf install gcc' (Fedora), then run $0 again."
    include=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    printf '#include <Python.h>\n' | ${cc} -E -x c -I "$include" - >/dev/null 2>&1 ||
        fail "The header files of $("$VENV/bin/python" --version) are missing: 'sudo apt-get install python3-dev' (Debian, Ubuntu) or 'sudo dnf install python3-devel' (Fedora), then run $0 again."
}
