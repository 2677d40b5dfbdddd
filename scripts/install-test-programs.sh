#!/bin/sh
# Install what some tests need and pip cannot: Chromium, and in CI Slurm, sshd and OpenMPI, whose
# services nobody wants on a desk. Where apt cannot do it these tests are skipped, and say so.
#
# usage: scripts/install-test-programs.sh
set -eu

have() {
    for program in "$@"; do
        PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null && return 0
    done
    return 1
}

install() {
    apt-get install -y -qq --no-install-recommends "$1" >/dev/null
}

packages=""
browsers="chromium-headless-shell"
[ -n "${CI:-}" ] || browsers="$browsers chromium chromium-browser" # slower, but nothing to install
have $browsers || packages="chromium-headless-shell"
if [ -n "${CI:-}" ]; then
    have slurmctld || packages="$packages slurm-wlm"
    have munged || packages="$packages munge"
    have sshd || packages="$packages openssh-server"
    have ssh || packages="$packages openssh-client"
    have ip || packages="$packages iproute2"
    have mpirun || packages="$packages openmpi-bin"
fi
[ -n "$packages" ] || exit 0
if ! have apt-get || [ "$(id -u)" != 0 ]; then
    echo "Only root with apt-get installs $packages: tests that need it are skipped." >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq >/dev/null || true
for package in $packages; do # one by one: a system may have some of them only
    install "$package" || { [ "$package" = chromium-headless-shell ] && install chromium; } ||
        echo "$package cannot be installed: tests that need it are skipped." >&2
done
