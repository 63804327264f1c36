#!/usr/bin/env bash
# Installs Slurm and munge where they are missing, on Debian and its kin. Elsewhere says why not and leaves it at that:
# the tests then skip with that reason.

set -euo pipefail

missing=()
for program in slurmctld slurmd munged; do command -v "$program" >/dev/null || missing+=("$program"); done
if ((${#missing[@]} == 0)); then exit 0; fi

become_root=()
if ((EUID != 0)); then become_root=(sudo --non-interactive); fi
if ! command -v apt-get >/dev/null; then
    echo "no ${missing[*]} and no apt-get to install them with: install Slurm and munge yourself" >&2
elif ((EUID != 0)) && ! sudo --non-interactive true 2>/dev/null; then
    echo "no ${missing[*]}: apt-get install slurm-wlm munge needs root" >&2
else
    # RUNLEVEL=1: the packages' own daemons are not to start, the tests have theirs
    install=("${become_root[@]}" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -q -o DPkg::Lock::Timeout=300 slurm-wlm munge)
    "${install[@]}" || { "${become_root[@]}" apt-get update -q && "${install[@]}"; } ||
        echo "apt-get install slurm-wlm munge failed" >&2
fi
