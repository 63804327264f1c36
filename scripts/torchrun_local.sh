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

# shellcheck source=scripts/launcher.sh
source "$(dirname "${BASH_SOURCE[0]}")/launcher.sh"

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
exec "${torchrun[@]}" --standalone --nproc-per-node="$ranks" $(numa_binding) ${options[@]+"${options[@]}"} \
    --no-python "$dlrm_train" "$@"
