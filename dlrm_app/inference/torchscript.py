"""model.ts: the scoring model as TorchScript, traced symbolically, for programs that still load that."""

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from dlrm_app.errors import DataError
from dlrm_app.files import ensure_room
from dlrm_app.inference.package import scored_bytes

MODEL = "model.ts"
_LEAVES = ["IntNBitTableBatchedEmbeddingBagsCodegen"]
"""What torchrec's tracer does not look into, as in its tutorial."""


def write_torchscript(path: Path, model: torch.nn.Module) -> None:
    """Writes ``model`` to ``path``; torch calls the format deprecated."""
    from torchrec.fx import symbolic_trace  # not where a model is but loaded

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
        script = torch.jit.script(symbolic_trace(model, leaf_modules=_LEAVES))
        ensure_room(path.parent, scored_bytes(model))
        torch.jit.save(torch.jit.freeze(script.eval()), str(path))


class Script:
    """A loaded model.ts."""

    def __init__(self, path: Path) -> None:
        import fbgemm_gpu  # noqa: F401  # the tables' operator

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._script = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]  # torch's
        except RuntimeError as error:
            raise DataError(
                f"{path} cannot be loaded: {str(error).splitlines()[0][:300]}; export again"
            ) from error

    @torch.no_grad()
    def __call__(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """(probabilities [B], logits [B])."""
        scores, logits = self._script(*inputs)
        return scores, logits
