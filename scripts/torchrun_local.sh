#!/usr/bin/env bash
# dlrm-train on this machine: one rank per GPU, or as many as you say.
#
#   scripts/torchrun_local.sh data.path=DATASET tables=dataset output=RUN
#   RANKS=2 scripts/torchrun_local.sh --max-restarts=3 data.path=DATASET … resume=auto output=RUN
#
# Options (--name=value) in front of the first key=value go to torchrun, everything else to dlrm-train.
# RANKS   how many ranks; without it one per GPU
# VENV    the virtual environment; without it that of the dlrm-train on PATH, or the .venv of `make setup`

set -euo pipefail

refuse() { printf 'error: %s\n' "$@" >&2; exit 2; }

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
case "${1:-}" in
    "" | -h | --help) sed -n '2,/^$/s/^# \{0,1\}//p' "$here/torchrun_local.sh"; [[ -n "${1:-}" ]] && exit 0 || exit 2 ;;
esac
# shellcheck source=scripts/find_commands.sh
source "$here/find_commands.sh"

options=()
while [[ "${1:-}" == --* && "${1:-}" != --cfg* ]]; do
    [[ "$1" == *=* ]] || refuse "$1: write an option of torchrun as --name=value"
    options+=("$1")
    shift
done

ranks="${RANKS:-}"
if [[ -z "$ranks" ]]; then
    nvidia-smi -L >/dev/null 2>&1 || refuse "no GPU was found (nvidia-smi -L): say how many ranks, RANKS=2 $0 …"
    ranks=gpu  # torchrun counts those that CUDA_VISIBLE_DEVICES leaves
fi

# --standalone: a free port, so that two runs on one machine don't meet
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"  # as torchrun would, with a warning; dlrm-train sets its threads itself
exec "${torchrun[@]}" --standalone --nproc-per-node="$ranks" ${options[@]+"${options[@]}"} \
    --no-python "$dlrm_train" "$@"
