"""What decides on a step's work, of a plan and the model that it is for."""

from torch import nn

from dlrm_app.config.train import TrainConfig
from dlrm_app.sharding.estimate.work import StepShape, lookup_share, matrices_of, pooled_share
from dlrm_app.sharding.plan.estimated_plan import EstimatedPlan


def step_shape(config: TrainConfig, plan: EstimatedPlan, model: nn.Module) -> StepShape:
    """For ``step_work``. ``model`` has the dense part's weights; its tables are not looked at."""
    num_ranks = plan.cluster.num_ranks
    tables = list(plan.work.tables.values())
    dense = [weight for name, weight in model.named_parameters() if "sparse_arch" not in name]
    return StepShape(
        batch=config.trainer.global_batch_size // num_ranks,
        num_ranks=num_ranks,
        matrices=matrices_of(model),
        num_dense_weights=sum(weight.numel() for weight in dense),
        tables=tables,
        optimizers=dict(plan.work.optimizers),
        dense_optimizer=config.optimizer.dense.kind,
        model=config.model,
        lookup_share=lookup_share(plan.assignment, tables, num_ranks),
        pooled_share=pooled_share(plan.assignment, tables, num_ranks),
    )
