#!/usr/bin/env bash
# Installs cmake and g++ where they are missing, on Debian and its kin. Elsewhere says why not and leaves it at that: the
# tests then skip with that reason.

set -euo pipefail

missing=()
for program in cmake g++; do command -v "$program" >/dev/null || missing+=("$program"); done
if ((${#missing[@]} == 0)); then exit 0; fi

become_root=()
if ((EUID != 0)); then become_root=(sudo --non-interactive); fi
if ! command -v apt-get >/dev/null; then
    echo "no ${missing[*]} and no apt-get to install them with: install them yourself" >&2
elif ((EUID != 0)) && ! sudo --non-interactive true 2>/dev/null; then
    echo "no ${missing[*]}: apt-get install ${missing[*]} needs root" >&2
else
    install=("${become_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q -o DPkg::Lock::Timeout=300 "${missing[@]}")
    "${install[@]}" || { "${become_root[@]}" apt-get update -q && "${install[@]}"; } ||
        echo "apt-get install ${missing[*]} failed" >&2
fi
