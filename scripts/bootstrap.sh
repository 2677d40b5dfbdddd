#!/bin/sh
# Make or refresh a virtual environment that holds this checkout and pinned versions.
#
# usage: scripts/bootstrap.sh VENV CONSTRAINTS EXTRA
# PYTHON chooses the interpreter; without it the first Python >= 3.11 on PATH is taken.
set -eu

venv=$1
constraints=$2
extra=$3

is_recent() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        is_recent "$PYTHON" && { echo "$PYTHON"; return; }
        echo "PYTHON=$PYTHON is not Python 3.11 or newer." >&2
        exit 1
    fi
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python; do
        is_recent "$candidate" && { echo "$candidate"; return; }
    done
    echo "No Python >= 3.11 on PATH. Install one, or name it: make PYTHON=/path/to/python3." >&2
    exit 1
}

# A venv whose interpreter was removed or is too old is made again.
is_recent "$venv/bin/python" || {
    python=$(find_python)
    "$python" -m venv --clear "$venv" || {
        echo "$python cannot make virtual environments (Debian: apt install python3-venv)." >&2
        exit 1
    }
}

# Exact pins only: torch without one would take whatever release is newest.
unset PYTHONPATH PYTHONHOME
# Where npm's registry cannot be reached everything but JupyterLab's sidebar can be used.
export MGPU_LABEXTENSION=optional
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
    --constraint "$constraints" --editable ".[$extra]"
[ ! -f build/labextension-failure.txt ] || cat build/labextension-failure.txt >&2
