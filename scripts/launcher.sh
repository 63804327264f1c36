# shellcheck shell=bash
# To be sourced by launchers: prints the head of the script that was asked for --help, or sets dlrm_train and torchrun, an
# array, both from one environment, or ends with what to do.

refuse() { printf 'error: %s\n' "$@" >&2; exit 2; }

case "${1:-}" in
    "" | -h | --help) sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; [[ -n "${1:-}" ]] && exit 0 || exit 2 ;;
esac

if [[ -n "${VENV:-}" ]]; then
    dlrm_train="$VENV/bin/dlrm-train"
elif ! dlrm_train="$(command -v dlrm-train)"; then
    dlrm_train="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/.venv/bin/dlrm-train"
fi
torchrun=("$(dirname "$dlrm_train")/python" -m dlrm_app.distributed.launcher)
for command in "$dlrm_train" "${torchrun[0]}"; do
    if [[ ! -x "$command" ]]; then
        refuse "$command is not there: type make setup, or activate the environment that has dlrm-app"
    fi
done
# torchrun kills ranks so long after a signal: the last checkpoint must be saved by then
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT="${SHUTDOWN_SECONDS:-300}"

# Prints torchrun's option that binds each rank to the cores near its GPU, where a machine has several NUMA nodes
numa_binding() {
    if compgen -G "/sys/devices/system/node/node1" >/dev/null && command -v numactl >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
        echo --numa-binding=node
    fi
}
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"  # as torchrun would, with a warning; dlrm-train sets its threads itself
