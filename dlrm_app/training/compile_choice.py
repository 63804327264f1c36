"""trainer.compile=auto: torch.compile where it was measured to shorten a step, decided once in a run's life.

By what is computed and where, not by a clock: the same run on the same kind of machine always has the same bits.
"""

import logging
from dataclasses import replace
from typing import TypeVar

from dlrm_app.config.train import TrainConfig
from dlrm_app.distributed.runtime import Runtime

logger = logging.getLogger(__name__)
Config = TypeVar("Config", bound=TrainConfig)


def with_compile(config: Config, before: TrainConfig | None, runtime: Runtime) -> Config:
    """``config`` with true or false in trainer.compile: its own, or that of the run ``before`` that goes on, or chosen.

    Its precision is chosen already.
    """
    if config.trainer.compile != "auto":
        return config
    if before is not None:
        chosen, why = before.trainer.compile, "as the run that goes on"
    else:
        chosen, why = _choose(config, runtime.device.type)
    if runtime.is_first:
        logger.info("trainer.compile=auto: %s, %s", str(chosen).lower(), why)
    return replace(config, trainer=replace(config.trainer, compile=chosen))


def _choose(config: TrainConfig, device_type: str) -> tuple[bool, str]:
    """By docs/experiments/index.md."""
    if device_type == "cuda":
        return False, "for it has not been measured on GPUs yet; try trainer.compile=true"
    if config.model.kind == "dcn" and config.trainer.precision == "bf16":
        return True, "which takes the sums of DCNv2's cross layers in bf16 together"
    return False, f"for {config.model.kind} in {config.trainer.precision} is as fast without it on CPU"
