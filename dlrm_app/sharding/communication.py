"""Pooled embeddings and their gradients in fewer bits between ranks.

fp16 and bf16 round each value; int8 keeps, for every 32 values in a row, their least one, their range and 255 steps
between (fbgemm's row-wise int8). Each is undone on arrival: what is computed stays float32.
"""

from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs
from torchrec.distributed.types import CommOp, QuantizedCommCodecs

from dlrm_app.config.sharding import CollectivesConfig


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


def _summable(name: str) -> str:
    return "fp16" if name == "int8" else name


def _codecs(forward: str, backward: str) -> QuantizedCommCodecs:
    return get_qcomm_codecs(QCommsConfig(CommType(forward), CommType(backward)))
