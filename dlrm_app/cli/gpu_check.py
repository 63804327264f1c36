"""``dlrm-gpu-check``: this machine's GPUs against its CPU in ten minutes, as a page and a table to paste."""

from dlrm_app.cli.launch import launch
from dlrm_app.config.gpu_check import GpuCheckConfig


def main() -> None:
    launch("gpu-check", GpuCheckConfig, _check)


def _check(config: GpuCheckConfig) -> None:
    from dlrm_app.training.gpu_check.check import check

    check(config)


if __name__ == "__main__":
    main()
