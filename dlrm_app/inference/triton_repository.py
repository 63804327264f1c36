"""format=triton: a model repository of NVIDIA's Triton Inference Server, whose PyTorch backend runs compiled packages.

triton/dlrm/config.pbtxt    the inputs and outputs, by Triton's names for them
triton/dlrm/1/model.pt2     the model, with tables in plain torch, because Triton has no fbgemm
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dlrm_app.inference.formats import Inputs
from dlrm_app.inference.plain_tables import PlainTables
from dlrm_app.inference.scoring_model import ScoringModel
from dlrm_app.inference.tables import QuantizedTables

CONFIG = "config.pbtxt"
_TYPES = {"float32": "TYPE_FP32", "int32": "TYPE_INT32"}


def write_config(repository: Path, example: Inputs, num_labels: int) -> None:
    """Writes the description of a model with inputs like ``example`` and ``num_labels`` labels to its folder."""
    dense, _, lengths, *_ = example
    shapes = [[-1, dense.shape[1] or -1], [-1], [lengths.shape[0], -1], [-1]]
    inputs = [
        (f"INPUT__{number}", _TYPES[str(tensor.dtype).removeprefix("torch.")], shape)
        for number, (tensor, shape) in enumerate(zip(example, shapes, strict=False))
    ]
    scores = [-1] if num_labels == 1 else [-1, num_labels]
    outputs = [(f"OUTPUT__{number}", "TYPE_FP32", scores) for number in range(2)]
    lines = [f'name: "{repository.name}"', 'platform: "torch_aoti"', "max_batch_size: 0"]
    lines += _listed("input", inputs) + _listed("output", outputs)
    lines.append("instance_group [ { kind: KIND_CPU } ]")
    (repository / CONFIG).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _listed(what: str, tensors: Sequence[tuple[str, str, list[int]]]) -> list[str]:
    described = [
        f'  {{ name: "{name}" data_type: {kind} dims: [ {", ".join(map(str, dims))} ] }}'
        for name, kind, dims in tensors
    ]
    return [f"{what} [", *(f"{line}," for line in described[:-1]), described[-1], "]"]


@contextmanager
def in_plain_torch(model: ScoringModel) -> Iterator[ScoringModel]:
    """``model`` with tables in plain torch, for the block."""
    quantized = model.tables
    assert isinstance(quantized, QuantizedTables)
    (parent, name) = next(
        (module, name)
        for module in model.modules()
        for name, child in module.named_children()
        if child is quantized
    )
    try:
        setattr(parent, name, PlainTables(quantized))
        yield model
    finally:
        setattr(parent, name, quantized)
