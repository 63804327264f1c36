"""Installs the kernels compiled for CPUs in place of fbgemm's and torchrec's, sets malloc's options, or
restores the libraries' code.

docs/kernels.md lists the replacements and says what happens with other versions of the libraries.
"""

import logging
import warnings
from collections.abc import Callable
from functools import cache, partial

import torch
from torch import nn

from dlrm_app.kernels.compiled import Untyped
from dlrm_app.kernels.memory import keep_freed_memory
from dlrm_app.machine import installed

logger = logging.getLogger(__name__)

WRITTEN_FOR = {"fbgemm": ("1.8", "1.9"), "torchrec": ("1.8", "1.9")}
"""Supported versions: operators depend on the order of fbgemm's arguments, layers on attributes of torchrec's."""
_libraries: list[torch.library.Library] = []
"""The library of our operators; they are in place as long as it exists."""


def install(model: nn.Module, device: torch.device, choice: str) -> nn.Module:
    """Puts the kernels of ``choice`` (trainer.kernels) into ``model`` on ``device``; its weights keep their names.

    compiled: replaces layers of the model and, on CPU, fbgemm's operators in the whole process. libraries:
    replaces nothing.
    """
    if choice == "libraries":
        restore_operators()
        return model
    keep_freed_memory()
    if device.type != "cpu" or not fits_libraries():
        return model
    from dlrm_app.kernels import openmp  # imported here: only this needs numba's kernels

    if openmp.IS_AVAILABLE:
        replace_operators()
    return replace_layers(model, openmp.IS_AVAILABLE)


@cache
def fits_libraries() -> bool:
    """True if the kernels support the installed versions of fbgemm and torchrec; otherwise warns once."""
    found = {
        "fbgemm": installed("fbgemm-gpu-cpu") or installed("fbgemm-gpu"),
        "torchrec": installed("torchrec"),
    }
    for name, wanted in WRITTEN_FOR.items():
        if not f"{found[name]}.".startswith(tuple(f"{version}." for version in wanted)):
            logger.warning(
                "trainer.kernels=compiled is written for %s %s, and %s is installed: the libraries' own code is used",
                name,
                " and ".join(wanted),
                found[name] or "another build",
            )
            return False
    return True


def replace_operators() -> None:
    """Replaces fbgemm's lookups and updates by ours in the whole process; ours call fbgemm's for other cases."""
    if _libraries:
        return
    from dlrm_app.kernels.lookups import make_lookup
    from dlrm_app.kernels.updates import ADAGRAD, ROWWISE_ADAGRAD, SGD, make_update

    makers: dict[str, Callable[[Untyped], Callable[..., Untyped]]] = {
        "split_embedding_codegen_forward_cpu": make_lookup,
        "split_embedding_backward_codegen_sgd_cpu": partial(make_update, SGD),
        "split_embedding_backward_codegen_adagrad_cpu": partial(make_update, ADAGRAD),
        "split_embedding_backward_codegen_rowwise_adagrad_cpu": partial(make_update, ROWWISE_ADAGRAD),
    }
    library = torch.library.Library("fbgemm", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the warning that an operator is replaced
        for name, make in makers.items():
            of_fbgemm = torch.library.get_kernel(f"fbgemm::{name}", "CPU")
            library.impl(  # type: ignore[no-untyped-call]
                name, make(of_fbgemm), "CPU", with_keyset=True, allow_override=True
            )
    _libraries.append(library)


def restore_operators() -> None:
    """Puts fbgemm's operators back, if they were replaced."""
    while _libraries:
        _libraries.pop()._destroy()  # type: ignore[no-untyped-call]


def replace_layers(model: nn.Module, has_openmp: bool = True) -> nn.Module:
    """Replaces every layer of ``model`` that has a faster version here.

    When traced or exported, our layers use plain operators too, so that the result is the same.
    """
    from torchrec.models.dlrm import InteractionArch
    from torchrec.modules.crossnet import LowRankCrossNet
    from torchrec.modules.mlp import Perceptron

    from dlrm_app.kernels.dense_layers import LinearRelu, LowRankCross

    for name, child in list(model.named_children()):
        if (
            type(child) is Perceptron
            and child._activation_fn is torch.relu
            and type(child._linear) is nn.Linear
        ):
            setattr(model, name, LinearRelu(child))
        elif type(child) is LowRankCrossNet:
            setattr(model, name, LowRankCross(child))
        elif type(child) is InteractionArch and has_openmp:
            from dlrm_app.kernels.interaction import DotInteraction

            setattr(model, name, DotInteraction(child.F))
        else:
            replace_layers(child, has_openmp)
    return model
