"""Libraries that would drown a run's own lines."""

import logging
import warnings


def quiet_libraries() -> None:
    """torchrec and torch log every plan and warn of their own deprecations; a run's lines would drown in them."""
    for name in ("torchrec", "torch.distributed", "fbgemm_gpu", "torch.fx._symbolic_trace"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for module in ("torch", "torchrec", "fbgemm_gpu"):
        warnings.filterwarnings("ignore", category=FutureWarning, module=rf"{module}\.")
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=rf"{module}\.")
    # fbgemm's dense kernel differentiates in its own way, which torch cannot see; tests compare it with torch's
    warnings.filterwarnings("ignore", message="fbgemm::dense_embedding_codegen_lookup_function")
    # raised in torch's code, but blamed on whoever asks a sharded tensor for its size
    warnings.filterwarnings("ignore", category=FutureWarning, message="Please use DTensor instead")
