"""trainer.precision=auto: bf16 where every rank's device has units for it, decided once in a run's life.

By what the device is, not by a clock: the same machine always decides alike.
"""

import logging
from dataclasses import replace
from typing import TypeVar

from dlrm_app.config.train import TrainConfig
from dlrm_app.distributed.collectives import all_gather_objects
from dlrm_app.distributed.runtime import Runtime
from dlrm_app.model.precision import bf16_slowdown, multiplies_bf16

logger = logging.getLogger(__name__)
Config = TypeVar("Config", bound=TrainConfig)


def with_precision(config: Config, before: TrainConfig | None, runtime: Runtime) -> Config:
    """``config`` with fp32 or bf16 in trainer.precision: its own, or that of the run ``before`` that goes on, or chosen.

    Warns where bf16 is asked for and a rank's device only emulates it. Every rank must call it.
    """
    asked = config.trainer.precision
    if asked == "fp32":
        return config
    lacking = [
        rank for rank, has in enumerate(all_gather_objects(multiplies_bf16(runtime.device))) if not has
    ]
    if asked == "bf16":
        if runtime.rank in lacking:
            logger.warning(
                "trainer.precision=bf16: rank %d's %s has no units for bf16, whose products take %.0f times as long there as "
                "fp32's: use trainer.precision=fp32, or auto",
                runtime.rank,
                _name(runtime),
                bf16_slowdown(runtime.device),
            )
        return config
    if before is not None:
        chosen, why = before.trainer.precision, "as the run that goes on"
    elif lacking:
        chosen, why = "fp32", f"rank {lacking[0]}'s {_name(runtime)} has no units for bf16"
    else:
        chosen, why = "bf16", f"every rank's {_name(runtime)} has units for it"
    if runtime.is_first:
        logger.info("trainer.precision=auto: %s, %s", chosen, why)
    return replace(config, trainer=replace(config.trainer, precision=chosen))


def _name(runtime: Runtime) -> str:
    return "GPU" if runtime.device.type == "cuda" else "CPU"
