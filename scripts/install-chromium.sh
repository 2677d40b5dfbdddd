#!/bin/sh
# Install Chromium for the browser tests where it is missing and apt can do it; they are skipped else.
#
# usage: scripts/install-chromium.sh
set -eu

! command -v chromium >/dev/null && ! command -v chromium-browser >/dev/null || exit 0
if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
    echo "No Chromium is here, and only root with apt-get installs it: no browser tests." >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } >/dev/null ||
    echo "Chromium cannot be installed: no browser tests." >&2
