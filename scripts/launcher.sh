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
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"  # as torchrun would, with a warning; dlrm-train sets its threads itself
