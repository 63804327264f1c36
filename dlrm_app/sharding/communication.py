"""Pooled embeddings and their gradients in fewer bits between ranks.

fp16 and bf16 round each value; int8 keeps, for every 32 values in a row, their least one, their range and 255 steps
between (fbgemm's row-wise int8). Each is undone on arrival: what is computed stays float32.
"""

from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs
from torchrec.distributed.types import CommOp, QuantizedCommCodecs

from dlrm_app.config.sharding import CollectivesConfig

INT8_ROW = 32
"""Values that share a range: fbgemm's fixed choice."""


def quantized_collectives(config: CollectivesConfig) -> dict[str, QuantizedCommCodecs] | None:
    """Codecs by kind of collective; None if nothing is to be rounded.

    torchrec's own registry puts fp16 in place of bf16 on CPU, where gloo carries bf16 as well by now, and lets int8 fail
    in the reduce-scatter of row_wise shards, which would add up steps of different ranges: fp16 goes there.
    """
    if config.forward == config.backward == "fp32":
        return None
    exchanged, summed = (
        _codecs(config.forward, config.backward),
        _codecs(_summable(config.forward), _summable(config.backward)),
    )
    return {
        CommOp.POOLED_EMBEDDINGS_ALL_TO_ALL.name: exchanged,
        CommOp.POOLED_EMBEDDINGS_REDUCE_SCATTER.name: summed,
    }


def collective_problems(config: CollectivesConfig, rows_per_rank: int, eval_rows_per_rank: int) -> list[str]:
    """Batches that int8 cannot cut into whole rows of 32 values, tables being multiples of 4 wide."""
    if "int8" not in (config.forward, config.backward):
        return []
    return [
        f"sharding.collectives in int8 need a multiple of 8 rows per rank in {key}, got {rows}: use "
        f"{-(-rows // 8) * 8}, or bf16"
        for key, rows in (
            ("trainer.global_batch_size / ranks", rows_per_rank),
            ("evaluation.batch_size", eval_rows_per_rank),
        )
        if rows % 8
    ]


def _summable(name: str) -> str:
    return "fp16" if name == "int8" else name


def _codecs(forward: str, backward: str) -> QuantizedCommCodecs:
    return get_qcomm_codecs(QCommsConfig(CommType(forward), CommType(backward)))
