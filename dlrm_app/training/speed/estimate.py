"""A whole step on a described cluster: estimated, part by part."""

import torch

from dlrm_app.config.plan import PlanConfig
from dlrm_app.errors import ConfigError
from dlrm_app.model.architectures import ModelSpec
from dlrm_app.model.build import build_model
from dlrm_app.runs.events import PARTS, TITLES
from dlrm_app.sharding.estimate.machine import described_machine
from dlrm_app.sharding.estimate.work import loaded, step_work
from dlrm_app.sharding.plan.estimated_plan import EstimatedPlan
from dlrm_app.table import text_table
from dlrm_app.tables.specs import Table
from dlrm_app.training.speed.shape import step_shape


def estimate_step(
    config: PlanConfig, plan: EstimatedPlan, tables: list[Table], num_dense: int
) -> dict[str, float]:
    """Part → milliseconds of a step of ``config``'s model. Raises ConfigError if that model cannot be built."""
    model = build_model(ModelSpec(config.model, tables, num_dense), torch.device("cpu"))
    machine = described_machine(config.topology, plan.cluster)
    precision = config.trainer.precision
    if precision == "auto":  # of a CPU that is not here nobody knows whether it has units for bf16
        precision = "bf16" if machine.device == "cuda" else "fp32"
    shape = step_shape(config, plan, model)
    times = machine.beside_loader(machine.estimate_ms(step_work(shape), precision), loaded(shape))
    return {part: times[part] for part in PARTS if part in times}


def estimate_text(config: PlanConfig, plan: EstimatedPlan, tables: list[Table], num_dense: int) -> str:
    """The estimate as a table, or why there is none: what a model lacks does not keep tables from being planned."""
    try:
        times = estimate_step(config, plan, tables, num_dense)
    except ConfigError as error:
        return f"no estimate of a whole step: {error}"
    total = sum(times.values())
    rows = [[TITLES[part], f"{ms:,.2f}", f"{ms / total:.0%}"] for part, ms in times.items()]
    rows.append(["all", f"{total:,.2f}", ""])
    speed = 1000 * config.trainer.global_batch_size / total
    basis = (
        "rates measured by dlrm-bench"
        if config.topology.efficiency
        else ("half of the rates that topology gives, which nobody measured")
    )
    return (
        f"a whole step, estimated from {basis}: {speed:,.0f} samples/s if nothing overlaps\n"
        f"{text_table(['', 'ms', 'share'], rows)}"
    )
