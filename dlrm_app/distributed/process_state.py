"""Settings of torch and Arrow that a job changes, and restores at its end: the process may be a notebook."""

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow
import torch
from torch.distributed import distributed_c10d

CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def ignore_library_warnings() -> None:
    """Ignores deprecation warnings among the libraries, and those that name our code for a library's own."""
    for module in ("torch", "torchrec", "fbgemm_gpu"):
        warnings.filterwarnings("ignore", category=FutureWarning, module=rf"{module}\.")
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=rf"{module}\.")
    # torch cannot see that fbgemm's dense kernel has its own backward pass; tests compare it with torch's
    warnings.filterwarnings("ignore", message="fbgemm::dense_embedding_codegen_lookup_function")
    # comes from torch's code, but names the caller that asks a sharded tensor for its size
    warnings.filterwarnings("ignore", category=FutureWarning, message="Please use DTensor instead")


@contextmanager
def quiet_loggers() -> Iterator[None]:
    """Silences the libraries' loggers that warn everyone who traces a model, or shards one with dense kernels."""
    levels = {
        logging.getLogger(name): logging.getLogger(name).level
        for name in ("torch.fx._symbolic_trace", "torchrec.distributed.utils")
    }
    for logger in levels:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


_call_module = torch.fx.Tracer.call_module


def _call_module_if_its_own(
    tracer: torch.fx.Tracer,
    module: torch.nn.Module,
    forward: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    """Lets torch.fx trace its own model alone: it catches the calls of all modules, also those of other threads."""
    if module not in (tracer.submodule_paths or {}):
        return forward(*args, **kwargs)
    return _call_module(tracer, module, forward, args, kwargs)


@contextmanager
def own_torch() -> Iterator[None]:
    """Computes in the block as in a process of its own, in float32, whatever torch.autocast, torch.no_grad,
    torch.inference_mode and torch.set_default_dtype the program is in.
    """
    dtype, caches = torch.get_default_dtype(), torch.is_autocast_cache_enabled()
    casts = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    torch.set_default_dtype(torch.float32)
    # not by the contexts of torch: within one, casts of weights are kept until it ends, however often these are trained
    for device in casts:
        torch.set_autocast_enabled(device, False)
        torch.set_autocast_cache_enabled(False)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_default_dtype(dtype)
        for device in casts:
            torch.set_autocast_enabled(device, True)
        torch.set_autocast_cache_enabled(caches)


@contextmanager
def restored(device: torch.device) -> Iterator[None]:
    """Ignores warnings of the libraries in the block, and restores after it warning filters, threads, generators (those
    of the CPU and of ``device``), precision and determinism. It computes as ``own_torch`` does."""
    threads, arrow_threads = torch.get_num_threads(), pyarrow.cpu_count()
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    tf32, timeout = torch.backends.cuda.matmul.allow_tf32, distributed_c10d.default_pg_timeout
    workspace = os.environ.get(CUBLAS_WORKSPACE)
    torch.fx.Tracer.call_module = _call_module_if_its_own  # type: ignore[method-assign,assignment]
    try:
        generators = torch.random.fork_rng([device] if device.type == "cuda" else [])
        with quiet_loggers(), warnings.catch_warnings(), generators, own_torch():
            ignore_library_warnings()
            yield
    finally:
        torch.fx.Tracer.call_module = _call_module  # type: ignore[method-assign]
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)
        pyarrow.set_cpu_count(arrow_threads)
        torch.use_deterministic_algorithms(is_deterministic, warn_only=only_warns)
        torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]
        torch.set_float32_matmul_precision(precision)
        torch.backends.cuda.matmul.allow_tf32 = tf32
        distributed_c10d.default_pg_timeout = timeout
        if workspace is None:
            os.environ.pop(CUBLAS_WORKSPACE, None)
