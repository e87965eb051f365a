# shellcheck shell=bash
# Sourced by the scripts beside it. Makes sure that .venv holds what pyproject.toml asks for, then sets:
#   LIQUID_ROOT    the checkout
#   LIQUID_PYTHON  the interpreter in .venv
# It never installs anything outside .venv. Where nothing has changed since the last time, it costs one start of Python.
#
# Read from the environment:
#   PYTHON              interpreter that creates .venv (default: python3; 3.11 or newer)
#   LIQUID_ENV          dev (default) or run: without the tools that only the checks need; a dev environment serves both
#   LIQUID_CONSTRAINTS  file of exact versions (default: constraints.txt). Set it to the empty string to take the newest
#                       that pyproject.toml allows: the way to a CUDA build of torch on a machine with a GPU.

LIQUID_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
LIQUID_PYTHON="$LIQUID_ROOT/.venv/bin/python"
LIQUID_ENV="${LIQUID_ENV:-dev}"
LIQUID_CONSTRAINTS="${LIQUID_CONSTRAINTS-$LIQUID_ROOT/constraints.txt}"

liquid_say() { printf 'liquid: %s\n' "$*" >&2; }

# Is $1 an interpreter that starts and is new enough?
liquid_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

# A fingerprint of everything that an installed environment depends on. $1: interpreter
liquid_fingerprint() {
    "$1" - "$LIQUID_ROOT" "$LIQUID_CONSTRAINTS" <<'PY'
import hashlib, pathlib, sys

root, constraints = sys.argv[1:]
digest = hashlib.sha256(f"{sys.version_info[:3]} {root} ".encode())
for name in filter(None, (f"{root}/pyproject.toml", constraints)):
    digest.update(pathlib.Path(name).read_bytes())
print(digest.hexdigest())
PY
}

# Does .venv hold what is wanted?
liquid_ready() {
    local fingerprint flavour
    liquid_new_enough "$LIQUID_PYTHON" || return 1
    fingerprint="$(liquid_fingerprint "$LIQUID_PYTHON")" || return 1
    for flavour in dev "$LIQUID_ENV"; do
        [ "$(cat "$LIQUID_ROOT/.venv/liquid-$flavour.stamp" 2>/dev/null)" = "$fingerprint" ] && return 0
    done
    return 1
}

liquid_make_venv() {
    local python="${PYTHON:-python3}"
    if [ -n "${PYTHON:-}" ] || ! liquid_new_enough "$LIQUID_PYTHON"; then
        if ! liquid_new_enough "$python"; then
            liquid_say "$python is not Python 3.11 or newer ($("$python" --version 2>&1 || true))."
            liquid_say "Install one and name it: PYTHON=python3.11 $0"
            return 1
        fi
    fi
    if ! liquid_new_enough "$LIQUID_PYTHON"; then
        "$python" -m venv --clear "$LIQUID_ROOT/.venv" && return 0
        liquid_say "$python cannot make a virtual environment; install its venv module (on Debian: python3-venv)."
        return 1
    fi
    if [ -n "${PYTHON:-}" ] && [ "$("$python" -V)" != "$("$LIQUID_PYTHON" -V)" ]; then
        liquid_say "PYTHON is $("$python" -V), but .venv was made with $("$LIQUID_PYTHON" -V)."
        liquid_say "Remove .venv to have it made anew, or unset PYTHON."
        return 1
    fi
}

# pip install with the constraints, its output in the log. $@: what to install
liquid_pip() {
    if [ -n "$LIQUID_CONSTRAINTS" ]; then
        set -- -c "$LIQUID_CONSTRAINTS" "$@"
    fi
    (cd "$LIQUID_ROOT" && "$LIQUID_PYTHON" -m pip install --disable-pip-version-check --no-input "$@") \
        >>"$LIQUID_ROOT/.venv/liquid-install.log" 2>&1
}

liquid_install() {
    local log="$LIQUID_ROOT/.venv/liquid-install.log" target="." started="$SECONDS" fingerprint
    [ "$LIQUID_ENV" = run ] || target=".[$LIQUID_ENV]"
    liquid_say "setting up .venv ($LIQUID_ENV); the first time takes a few minutes ..."
    liquid_make_venv || return 1
    : >"$log"
    # torch first and alone: its wheel is by far the largest, and a missing one has a remedy of its own.
    if liquid_pip torch && liquid_pip -e "$target"; then
        fingerprint="$(liquid_fingerprint "$LIQUID_PYTHON")" || return 1
        printf '%s\n' "$fingerprint" >"$LIQUID_ROOT/.venv/liquid-$LIQUID_ENV.stamp"
        liquid_say ".venv is ready after $((SECONDS - started)) s"
        return 0
    fi
    tail -n 15 "$log" >&2
    if grep -Eq 'No matching distribution found for torch|Cannot install torch because' "$log"; then
        liquid_say "No wheel of the pinned torch fits $("$LIQUID_PYTHON" -V). Remove .venv and name another interpreter"
        liquid_say "(PYTHON=python3.11 $0), or take the newest release that pyproject.toml allows: LIQUID_CONSTRAINTS= $0"
    fi
    liquid_say "The installation failed; the whole output is in $log"
    return 1
}

# One installer at a time; whoever waited finds the work done.
liquid_setup() {
    liquid_ready && return 0
    (
        if command -v flock >/dev/null 2>&1; then
            flock 9
            liquid_ready && exit 0
        fi
        liquid_install
    ) 9>"$LIQUID_ROOT/.venv.lock"
}

case "$LIQUID_ENV" in
    dev | run) ;;
    *)
        liquid_say "LIQUID_ENV is '$LIQUID_ENV'; it can be dev or run."
        exit 2
        ;;
esac
liquid_setup || exit 1

# One thread per process: replicas share the cores of a machine, and results must not depend on the number of threads.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
unset PYTHONDONTWRITEBYTECODE
