#!/usr/bin/env bash
# dlrm-train on several machines: type this on each of them, with its own NODE_RANK.
#
#   NNODES=2 NODE_RANK=0 MASTER_ADDR=node0 scripts/torchrun_multinode.sh data.path=DATASET … resume=auto output=RUN
#   NNODES=2 NODE_RANK=1 MASTER_ADDR=node0 scripts/torchrun_multinode.sh data.path=DATASET … resume=auto output=RUN
#
# or, where nobody hands out numbers, the very same line on all of them, MASTER_ADDR being any one of them:
#
#   NNODES=2 MASTER_ADDR=node0 scripts/torchrun_multinode.sh --rdzv=c10d data.path=DATASET … resume=auto output=RUN
#
# Dataset and output must lie on a file system that all see under the same names.
#
# NNODES            how many machines
# NODE_RANK         this one's number, 0 on the machine MASTER_ADDR (not for --rdzv=c10d)
# MASTER_ADDR       name or address of one machine that all the others reach
# MASTER_PORT       a port that is free there (29500)
# RANKS_PER_NODE    ranks on this machine; without it one per GPU
# SHUTDOWN_SECONDS  how long torchrun waits for a last checkpoint after a signal (300)
# RUN_ID            tells runs apart that meet at one c10d address (dlrm)
# VENV              the virtual environment; without it that of the dlrm-train on PATH, or the .venv of `make setup`
#
# --rdzv=static     the default: rank 0 is on the machine 0, always. A run that resumes gives the same to the bit.
# --rdzv=c10d       torchrun hands out the numbers, anew at every start
# Further options (--name=value) in front of the first key=value go to torchrun: --max-restarts=3, --log-dir=logs …

set -euo pipefail

# shellcheck source=scripts/launcher.sh
source "$(dirname "${BASH_SOURCE[0]}")/launcher.sh"

rdzv=static
options=()
while [[ "${1:-}" == --* && "${1:-}" != --cfg* ]]; do
    case "$1" in
        --rdzv=*) rdzv="${1#*=}" ;;
        *=*) options+=("$1") ;;
        *) refuse "$1: write an option of torchrun as --name=value" ;;
    esac
    shift
done

is_count() { [[ "$1" =~ ^[0-9]+$ ]]; }

problems=()
port="${MASTER_PORT:-29500}"
is_count "${NNODES:-}" && ((NNODES > 0)) || problems+=("NNODES='${NNODES:-}': say how many machines, NNODES=2")
[[ -n "${MASTER_ADDR:-}" ]] || problems+=("MASTER_ADDR is not set: name the machine where all meet, MASTER_ADDR=node0")
is_count "$port" && ((port > 0 && port < 65536)) || problems+=("MASTER_PORT='$port' is no port: 1 to 65535")
case "$rdzv" in
    static)
        is_count "${NODE_RANK:-}" || problems+=(
            "NODE_RANK='${NODE_RANK:-}': give each machine its number, 0 on MASTER_ADDR, or add --rdzv=c10d")
        if is_count "${NODE_RANK:-}" && is_count "${NNODES:-}" && ((NODE_RANK >= NNODES)); then
            problems+=("NODE_RANK=$NODE_RANK must be below NNODES=$NNODES: the numbers begin with 0")
        fi ;;
    c10d) [[ -z "${NODE_RANK:-}" ]] || problems+=("NODE_RANK=$NODE_RANK: --rdzv=c10d numbers the machines itself, unset it") ;;
    *) problems+=("--rdzv=$rdzv: choose static or c10d") ;;
esac
ranks="${RANKS_PER_NODE:-}"
if [[ -z "$ranks" ]]; then
    nvidia-smi -L >/dev/null 2>&1 || problems+=("no GPU was found (nvidia-smi -L): say how many ranks, RANKS_PER_NODE=2")
    ranks=gpu
fi
((${#problems[@]} == 0)) || refuse "${problems[@]}"

if [[ "$rdzv" == static ]]; then
    meeting=(--node-rank="$NODE_RANK" --master-addr="$MASTER_ADDR" --master-port="$port")
else
    meeting=(--rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:$port" --rdzv-id="${RUN_ID:-dlrm}")
    # torchrun compares and hands on this machine's name, which many machines resolve to 127.0.1.1: tell it the
    # address by which MASTER_ADDR is reached, and whether that is MASTER_ADDR itself
    master="$(getent ahostsv4 "$MASTER_ADDR" | awk '{print $1; exit}')" || true
    [[ -n "$master" ]] || refuse "MASTER_ADDR=$MASTER_ADDR: no address is known for that name"
    address="$(ip -o route get "$master" 2>/dev/null | sed -n 's/.* src \([^ ]*\).*/\1/p')" || true
    if [[ -n "$address" ]]; then
        is_host=false
        if [[ "$address" == "$master" ]]; then is_host=true; fi
        meeting+=(--local-addr="$address" --rdzv-conf="is_host=$is_host")
    fi
fi
unset NODE_RANK MASTER_ADDR MASTER_PORT  # torchrun sets the ranks' own

exec "${torchrun[@]}" --nnodes="$NNODES" --nproc-per-node="$ranks" "${meeting[@]}" $(numa_binding) ${options[@]+"${options[@]}"} \
    --no-python "$dlrm_train" "$@"
