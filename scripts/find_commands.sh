# shellcheck shell=bash
# To be sourced: sets dlrm_train and torchrun, an array, both from one environment, or ends with what to do.

if [[ -n "${VENV:-}" ]]; then
    dlrm_train="$VENV/bin/dlrm-train"
elif ! dlrm_train="$(command -v dlrm-train)"; then
    dlrm_train="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/.venv/bin/dlrm-train"
fi
torchrun=("$(dirname "$dlrm_train")/python" -m dlrm_app.distributed.torchrun)
for command in "$dlrm_train" "${torchrun[0]}"; do
    if [[ ! -x "$command" ]]; then
        echo "error: $command is not there: type make setup, or activate the environment that has dlrm-app" >&2
        exit 2
    fi
done
