"""model.pt2: the scoring model compiled by AOTInductor, and its loading, which unpickles nothing.

The package is machine code for one CPU family, made against one torch: both stand in it, beside what it takes.
"""

import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from dlrm_app.errors import DataError, DlrmError
from dlrm_app.files import ensure_room
from dlrm_app.inference.reference import Inputs
from dlrm_app.kernels.freed_memory import keep_freed_memory

MODEL = "model.pt2"
_CODE_BYTES = 2**18
_NAME = "model"
_MARCH = {"native": None, "avx2": "x86-64-v3", "avx512": "x86-64-v4"}
_VECTOR_BITS = {"native": None, "avx2": 256, "avx512": 512}
_LEVELS = {
    "avx2": {"avx2", "fma", "f16c", "bmi1", "bmi2"},
    "avx512": {
        "avx2",
        "fma",
        "f16c",
        "bmi1",
        "bmi2",
        "avx512f",
        "avx512bw",
        "avx512cd",
        "avx512dq",
        "avx512vl",
    },
}
_MATTERS = re.compile("avx|amx|fma|f16c|bmi|gfni|vaes|vpclmul|sse4|popcnt|movbe|sha_ni|adx")
"""Instructions that a compiler uses of its own accord where the CPU has them."""


def cpu_instructions() -> set[str]:
    """The vector and other optional instructions of this machine's CPU, as Linux names them."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return set()
    lines = re.findall(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return {flag for flag in (lines[0].split() if lines else []) if _MATTERS.match(flag)}


def needed_instructions(cpu: str) -> list[str]:
    """What a package for ``cpu`` (native, avx2 or avx512) needs, sorted."""
    return sorted(_LEVELS[cpu] if cpu in _LEVELS else cpu_instructions())


def write_package(
    path: Path, model: torch.nn.Module, example: Inputs, cpu: str, metadata: dict[str, str]
) -> None:
    """Compiles ``model`` for any number of rows and ids and writes it to ``path``, with ``metadata`` in it.

    ``example``: two rows or more. Raises DlrmError where there is no compiler.
    """
    rows = torch.export.Dim("rows", min=1, max=1 << 24)
    ids = torch.export.Dim("ids", min=0, max=(1 << 31) - 1)
    settings: dict[str, bool | int | str | dict[str, str] | None] = {
        "freezing": True,  # the linear layers' weights are laid out for the CPU's products beforehand
        "cpp.dynamic_threads": True,  # as many as the process that loads it has, not this one
        "cpp.simdlen": _VECTOR_BITS[cpu],
        "aot_inductor.metadata": metadata,
    }
    if _MARCH[cpu] is not None:
        settings["cpp.march"] = _MARCH[cpu]
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
    with torch.no_grad(), warnings.catch_warnings(), _to_compile(model):
        warnings.simplefilter("ignore")
        ensure_room(path.parent, scored_bytes(model))
        program = torch.export.export(model, example, dynamic_shapes=({0: rows}, {0: ids}, {1: rows}))
        try:
            torch._inductor.aoti_compile_and_package(
                program, package_path=str(path), inductor_configs=settings
            )
        except torch._inductor.exc.InductorError as error:
            raise DlrmError(
                f"the model cannot be compiled: {str(error).splitlines()[0][:300]}; format=aoti needs a C++ compiler "
                "(apt-get install g++), format=torchscript does without"
            ) from error


def scored_bytes(model: torch.nn.Module) -> int:
    """What ``model`` takes in a file, at least: its weights, and the code about them."""
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers())) + _CODE_BYTES


@contextmanager
def _to_compile(model: torch.nn.Module) -> Iterator[None]:
    """Puts the interactions of ``model`` in the operators that are compiled best."""
    # they load torchrec, which a model that is but loaded does without
    from dlrm_app.kernels.pair_products import PairProducts
    from dlrm_app.model.dlrm import DotInteraction

    replaced = [
        (parent, name, child)
        for parent in list(model.modules())
        for name, child in parent.named_children()
        if isinstance(child, DotInteraction)
    ]
    try:
        for parent, name, child in replaced:
            setattr(parent, name, PairProducts(child.F))
        yield
    finally:
        for parent, name, child in replaced:
            setattr(parent, name, child)


class Package:
    """A loaded model.pt2. Only torch's C++ loader reads it: the Python one may unpickle what lies in the archive."""

    def __init__(self, path: Path, num_runners: int = 1) -> None:
        import fbgemm_gpu  # noqa: F401  # the tables' operator

        keep_freed_memory()
        try:
            self._loader = torch._C._aoti.AOTIModelPackageLoader(str(path), _NAME, False, num_runners, -1)
        except RuntimeError as error:
            raise DataError(
                f"{path} cannot be loaded: {str(error).splitlines()[0][:300]}; export again"
            ) from error

    def __call__(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """(probabilities [B], logits [B])."""
        scores, logits = self._loader.boxed_run(list(inputs))
        return scores, logits
