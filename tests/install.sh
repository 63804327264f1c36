#!/usr/bin/env bash
# tests/install.sh PROGRAMS PACKAGES: installs the Debian packages where one of the programs is missing. Elsewhere it says
# why not and leaves it at that: the tests then skip with that reason.

set -euo pipefail

read -ra programs <<<"$1"
read -ra packages <<<"$2"
missing=()
for program in "${programs[@]}"; do command -v "$program" >/dev/null || missing+=("$program"); done
if ((${#missing[@]} == 0)); then exit 0; fi

become_root=()
if ((EUID != 0)); then become_root=(sudo --non-interactive); fi
if ! command -v apt-get >/dev/null; then
    echo "no ${missing[*]} and no apt-get to install them with: install ${packages[*]} yourself" >&2
elif ((EUID != 0)) && ! sudo --non-interactive true 2>/dev/null; then
    echo "no ${missing[*]}: apt-get install ${packages[*]} needs root" >&2
else
    # RUNLEVEL=1: the packages' own daemons (Slurm's) are not to start, the tests have theirs
    install=("${become_root[@]}" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
        apt-get install -y -q -o DPkg::Lock::Timeout=300 "${packages[@]}")
    "${install[@]}" || { "${become_root[@]}" apt-get update -q && "${install[@]}"; } ||
        echo "apt-get install ${packages[*]} failed" >&2
fi
