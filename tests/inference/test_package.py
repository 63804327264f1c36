"""The compiled package, made once: equal to the eager model, and refused on another CPU."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torchrec.models.dlrm import InteractionArch

from dlrm_app.errors import DataError
from dlrm_app.inference import exported_model
from dlrm_app.inference.exported_model import from_lines, open_export, to_lines
from dlrm_app.inference.formats import (
    SCRIPT,
    PairProducts,
    cpu_instructions,
    load_script,
    write_package,
    write_torchscript,
)
from dlrm_app.inference.record import read_export
from tests.inference.conftest import first_rows
from tests.refusals import refused


@pytest.mark.long
def test_the_package_scores_as_the_script_of_the_same_model(package_export: Path, trained: Path) -> None:
    """TorchScript runs torch's own kernels, none of the compiled ones."""
    model = open_export(package_export)
    script = load_script(package_export / SCRIPT)
    for size in (1, 2, 77, 701):
        inputs = first_rows(trained, size)
        torch.testing.assert_close(model.score(inputs)[0], script(inputs)[0], rtol=0, atol=1e-6)


@pytest.mark.long
def test_both_files_are_verified(package_export: Path) -> None:
    record = read_export(package_export)
    assert [found.file for found in record.proofs] == ["model.pt2", "model.ts"]
    assert [table.type for table in record.tables] == ["fp16", "int8", "int8"]
    assert record.cpu == sorted(cpu_instructions())


@pytest.mark.long
def test_a_cpu_without_an_instruction_is_refused_by_its_name(
    package_export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = read_export(package_export).cpu
    lacking = needed[-1]
    monkeypatch.setattr(exported_model, "cpu_instructions", lambda: set(needed) - {lacking})
    with refused(DataError, "the CPU", f"lacks {lacking}, which the export uses"):
        open_export(package_export)


def test_reference_rows_come_back_to_the_bit(trained: Path) -> None:
    inputs = first_rows(trained, 50)
    for before, after in zip(inputs, from_lines(to_lines(inputs), 3), strict=True):
        assert torch.equal(before, after)


def test_a_full_disk_is_reported_before_torch_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writers of both files throw where nothing can catch it."""
    model = torch.nn.Linear(3, 1)
    monkeypatch.setattr("dlrm_app.files.shutil.disk_usage", lambda _: SimpleNamespace(free=9000))
    with pytest.raises(OSError, match="No space left on device"):
        write_torchscript(tmp_path / "model.ts", model)
    with pytest.raises(OSError, match="No space left on device"):
        write_package(tmp_path / "model.pt2", model, (torch.zeros(2, 3),), "native", {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("features", "dim"), [(1, 4), (5, 8), (26, 3)])
def test_the_interaction_that_is_compiled_is_torchrecs(features: int, dim: int) -> None:
    generator = torch.Generator().manual_seed(features)
    dense = torch.randn(7, dim, generator=generator)
    sparse = torch.randn(7, features, dim, generator=generator)
    torch.testing.assert_close(
        PairProducts(features)(dense, sparse), InteractionArch(features)(dense, sparse), rtol=0, atol=1e-5
    )
