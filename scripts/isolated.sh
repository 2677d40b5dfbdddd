#!/bin/sh
# Run a command with private Jupyter, IPython, matplotlib and XDG folders, removed at the end.
#
# usage: scripts/isolated.sh COMMAND [ARGUMENT...]
set -eu

# Short: socket paths below it must stay under 108 bytes.
private=$(mktemp -d /tmp/mgpu-XXXXXX)
child=
trap 'rm -rf "$private"' EXIT
trap '[ -z "$child" ] || kill -TERM "$child" 2>/dev/null || true' TERM HUP
# The command gets Ctrl-C from the terminal itself; this shell only waits for it.
trap : INT

mkdir -m 700 "$private/jupyter" "$private/ipython" "$private/mpl" "$private/xdg" "$private/run"
export JUPYTER_CONFIG_DIR="$private/jupyter/config"
export JUPYTER_DATA_DIR="$private/jupyter/data"
export JUPYTER_RUNTIME_DIR="$private/run/jupyter"
export IPYTHONDIR="$private/ipython"
export MPLCONFIGDIR="$private/mpl"
export XDG_CACHE_HOME="$private/xdg/cache"
export XDG_CONFIG_HOME="$private/xdg/config"
export XDG_DATA_HOME="$private/xdg/data"
export XDG_STATE_HOME="$private/xdg/state"
export XDG_RUNTIME_DIR="$private/run"
export PYTHONNOUSERSITE=1
# What is compiled is kept: else each of the many processes compiles the package again.
unset PYTHONDONTWRITEBYTECODE
unset PYTHONPATH PYTHONHOME PYTHONSTARTUP JUPYTER_PATH JUPYTER_CONFIG_PATH MPLBACKEND

# A shell lets what it runs in the background ignore Ctrl-C, and so all that this starts.
if env --default-signal=INT true 2>/dev/null; then
    set -- env --default-signal=INT "$@"
fi
"$@" &
child=$!
status=0
wait "$child" || status=$?
# A trapped signal ends the first wait early; the second one gets the real status.
if kill -0 "$child" 2>/dev/null; then
    status=0
    wait "$child" || status=$?
fi
exit "$status"
