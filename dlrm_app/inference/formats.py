"""Export formats that can score: writers, and loaders that unpickle nothing.

aoti: model.pt2, compiled by AOTInductor; machine code for one CPU family and one torch version. The file names both.
torchscript: model.ts, traced symbolically, for programs that still load TorchScript.
triton: a package like aoti's with tables in plain torch, in a model repository of NVIDIA's Triton.
"""

import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dlrm_app.distributed.process_state import quiet_loggers
from dlrm_app.errors import DataError, DlrmError, Problem, first_line
from dlrm_app.files import ensure_room
from dlrm_app.kernels.memory import keep_freed_memory

Inputs = tuple[torch.Tensor, ...]
"""dense [B, N] float32, values [V] int32 (the ids of the first feature's rows, then of the second's, and so on),
lengths [F, B] int32, the number of ids in each row. For a model with element weights also weights [V] float32, one for
each id: 1 for those of features that have none."""
Forward = Callable[[Sequence[torch.Tensor]], tuple[torch.Tensor, torch.Tensor]]
"""A loaded model: inputs → (probabilities [B], logits [B])."""

PACKAGE, SCRIPT, IN_REPOSITORY = "model.pt2", "model.ts", "triton/dlrm/1/model.pt2"
COMPILED = ("aoti", "triton")
"""Formats of machine code."""
_CODE_BYTES, _LARGE_BYTES, _ASSEMBLED_BYTES = 2**21, 2**20, 2**28
_NAME = "model"
_LEAVES = ["IntNBitTableBatchedEmbeddingBagsCodegen"]
"""Modules that torchrec's tracer does not trace into, as in its tutorial."""


_EXTRACTED = re.compile(r"/.*/aotinductor_\w+(?=/)")
"""The temporary folder in the path of a mapped file of a package."""
_AVX2 = {"avx2", "fma", "f16c", "bmi1", "bmi2"}
_CPUS = {
    "avx2": ("x86-64-v3", 256, _AVX2),
    "avx512": ("x86-64-v4", 512, _AVX2 | {f"avx512{part}" for part in ("f", "bw", "cd", "dq", "vl")}),
}
"""(the compiler's name of the CPU, bits of a vector, the instructions that a package for it needs)."""
_RELEVANT = re.compile("avx|amx|fma|f16c|bmi|gfni|vaes|vpclmul|sse4|popcnt|movbe|sha_ni|adx")
"""Instructions that a compiler may use by itself if the CPU has them."""


def cpu_instructions() -> set[str]:
    """The vector and other optional instructions of this machine's CPU, by Linux's names."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return set()
    lines = re.findall(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return {flag for flag in (lines[0].split() if lines else []) if _RELEVANT.match(flag)}


def needed_instructions(cpu: str) -> list[str]:
    """The instructions that a package for ``cpu`` (native, avx2 or avx512) needs, sorted."""
    return sorted(_CPUS[cpu][2] if cpu in _CPUS else cpu_instructions())


def write_package(
    path: Path, model: torch.nn.Module, example: Inputs, cpu: str, metadata: dict[str, str]
) -> None:
    """Compiles ``model`` for any number of rows and ids and writes it to ``path``, together with ``metadata``.

    ``example``: two or more rows. Raises DlrmError if there is no compiler.
    """
    rows = torch.export.Dim("rows", min=1, max=1 << 24)
    ids = torch.export.Dim("ids", min=0, max=(1 << 31) - 1)
    shapes = ({0: rows}, {0: ids}, {1: rows}, {0: ids})[: len(example)]
    settings: dict[str, bool | int | str | dict[str, str] | None] = {
        "freezing": True,  # stores the linear layers' weights in the layout of the CPU's products
        "cpp.dynamic_threads": True,  # uses the threads of the process that loads it, not of this one
        "aot_inductor.metadata": metadata,
        # weights after the code in its file, as torch does from 2 GB on: the assembler would hold them twice
        "aot_inductor.force_mmap_weights": scored_bytes(model) > _ASSEMBLED_BYTES,
    }
    if cpu in _CPUS:
        settings |= dict(zip(("cpp.march", "cpp.simdlen"), _CPUS[cpu][:2], strict=True))
    with torch.no_grad(), _quiet_tracing(), _to_compile(model):
        ensure_room(path.parent, scored_bytes(model))
        program = torch.export.export(model, example, dynamic_shapes=shapes)
        try:
            torch._inductor.aoti_compile_and_package(
                program, package_path=str(path), inductor_configs=settings
            )
        except torch._inductor.exc.InductorError as error:
            lines = str(error).splitlines()
            reason = next((line for line in lines if " error: " in line), lines[0])
            raise DlrmError(
                f"the model cannot be compiled: {reason[:300]}; format=aoti needs a C++ compiler (apt-get install "
                "g++) that may write files of its own; format=torchscript does not need one"
            ) from error


def scored_bytes(model: torch.nn.Module) -> int:
    """An upper bound of the bytes of ``model`` in a file: its weights and their code."""
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers())) + _CODE_BYTES


@contextmanager
def _to_compile(model: torch.nn.Module) -> Iterator[None]:
    """Replaces the interactions of ``model`` by operators that compile well, for the block."""
    # imported here: loading an export must not wait for torchrec
    from torchrec.models.dlrm import InteractionArch

    replaced: list[tuple[torch.nn.Module, str, Any]] = [
        (parent, name, child)
        for parent in list(model.modules())
        for name, child in parent.named_children()
        if type(child) is InteractionArch
    ]
    try:
        for parent, name, child in replaced:
            setattr(parent, name, PairProducts(child.F))
        yield
    finally:
        for parent, name, child in replaced:
            setattr(parent, name, child)


class PairProducts(torch.nn.Module):
    """([B, D], [B, F, D]) → [B, D + P]: torchrec's InteractionArch, in operators that the compiler fuses.

    Batched products of [V, D] with [D, V] are so small that they run at a tenth of a core's speed, and half of the
    results are dropped (docs/experiments/inference.md). Use it only compiled: otherwise it holds [B, P, D] three
    times. F sparse features, V = F + 1 vectors of a row, the dense one first, D their width, P = V · F / 2 pairs of
    them.
    """

    first: torch.Tensor
    second: torch.Tensor

    def __init__(self, num_features: int) -> None:
        super().__init__()
        first, second = torch.triu_indices(num_features + 1, num_features + 1, 1)
        self.register_buffer("first", first.clone())
        self.register_buffer("second", second.clone())

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        vectors = torch.cat([dense.unsqueeze(1), sparse], 1)
        dots = (vectors[:, self.first] * vectors[:, self.second]).sum(2)
        return torch.cat([dense, dots], 1)


@contextmanager
def _quiet_tracing() -> Iterator[None]:
    with quiet_loggers(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def write_torchscript(path: Path, model: torch.nn.Module) -> None:
    """Writes ``model`` to ``path`` as TorchScript, which torch has deprecated."""
    from torchrec.fx import symbolic_trace  # imported here: only writing needs it

    with _quiet_tracing():
        script = torch.jit.script(symbolic_trace(model, leaf_modules=_LEAVES)).eval()
        ensure_room(path.parent, scored_bytes(model))
        # torch keeps the code of a frozen module, and the constants in it, for the life of the process: tables stay
        # attributes
        tables = [name for name, values in script.named_parameters() if values.nbytes > _LARGE_BYTES]
        torch.jit.save(torch.jit.freeze(script, preserved_attrs=tables), str(path))


def load_package(path: Path) -> Forward:
    """Loads model.pt2 with torch's C++ loader: the Python loader may unpickle files in the archive."""
    import fbgemm_gpu  # noqa: F401  # the tables' operator

    keep_freed_memory()
    with _loading(path):
        loader = torch._C._aoti.AOTIModelPackageLoader(str(path), _NAME, False, 1, -1)
    _delete_extracted()

    def run(inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        scores, logits = loader.boxed_run(list(inputs))
        return scores, logits

    return run


def _delete_extracted() -> None:
    """Deletes the files that the loader has extracted, which are mapped by now.

    It deletes them itself when the model is freed, but commands end without destructors.
    """
    maps = Path("/proc/self/maps")
    for line in maps.read_text(encoding="utf-8").splitlines() if maps.exists() else ():
        if found := _EXTRACTED.search(line):
            shutil.rmtree(found[0], ignore_errors=True)


def load_script(path: Path) -> Forward:
    import fbgemm_gpu  # noqa: F401  # the tables' operator

    with _loading(path), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]  # torch's

    @torch.no_grad()
    def run(inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        scores, logits = script(*inputs)
        return scores, logits

    return run


@contextmanager
def _loading(path: Path) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise DataError(
            Problem(str(path), f"cannot be loaded ({first_line(error)[:300]})", "export again")
        ) from error


LOADERS: dict[str, tuple[str, Callable[[Path], Forward]]] = {
    "aoti": (PACKAGE, load_package),
    "torchscript": (SCRIPT, load_script),
    "triton": (IN_REPOSITORY, load_package),
}
"""Format that can score → (its file, its loader)."""
