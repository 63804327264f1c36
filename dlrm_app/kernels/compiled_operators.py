"""What computes tables on CPU in place of fbgemm's operators."""

import warnings
from functools import cache

import torch

from dlrm_app.kernels.compiled_lookups import make_lookup
from dlrm_app.kernels.compiled_updates import make_adagrad, make_rowwise_adagrad, make_sgd

MAKERS = {
    "split_embedding_codegen_forward_cpu": make_lookup,
    "split_embedding_backward_codegen_sgd_cpu": make_sgd,
    "split_embedding_backward_codegen_adagrad_cpu": make_adagrad,
    "split_embedding_backward_codegen_rowwise_adagrad_cpu": make_rowwise_adagrad,
}
"""fbgemm's name → what makes ours of theirs, which does what ours cannot."""


@cache
def replace_operators() -> torch.library.Library:
    """Puts ours in the place of fbgemm's, in the whole process, as long as the library lives."""
    library = torch.library.Library("fbgemm", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that an operator is replaced
        for name, make in MAKERS.items():
            of_fbgemm = torch.library.get_kernel(f"fbgemm::{name}", "CPU")
            library.impl(name, make(of_fbgemm), "CPU", with_keyset=True, allow_override=True)  # type: ignore[no-untyped-call]
    return library
