"""format=triton: a repository as Triton's PyTorch backend expects it, and a package that needs torch alone. No Triton runs here."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import tritonclient

from dlrm_app.config.export import ExportConfig
from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.errors import ConfigError
from dlrm_app.inference.exported_model import open_export
from dlrm_app.inference.formats import load_package, write_package
from dlrm_app.inference.plain_tables import PlainTables
from dlrm_app.inference.problems import check_export
from dlrm_app.inference.record import read_export
from dlrm_app.inference.scoring_model import to_inputs
from dlrm_app.inference.serve.scoring import open_served
from dlrm_app.inference.tables import QuantizedTables
from dlrm_app.inference.triton_repository import write_config
from dlrm_app.loader.batch import EvalBatches
from dlrm_app.tables.table import Table
from tests.composed import compose_config
from tests.inference.mixed import TEST
from tests.refusals import refused


def parsed(path: Path) -> Any:
    """The configuration as Triton's own schema reads it, without the client's part for gRPC."""
    from google.protobuf import text_format

    source = Path(tritonclient.__file__).parent / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", source)
    assert spec is not None
    assert spec.loader is not None
    schema = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(schema)
    return text_format.Parse(path.read_text(), schema.ModelConfig())


def described(tensors: Any) -> list[tuple[str, str, list[int]]]:
    kinds = tensors[0].DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
    return [(each.name, kinds[each.data_type].name, list(each.dims)) for each in tensors]


@pytest.mark.parametrize(("num_dense", "dims"), [(3, [-1, 3]), (0, [-1, -1])])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_the_configuration_names_inputs_and_outputs(
    tmp_path: Path, num_dense: int, dims: list[int], is_weighted: bool
) -> None:
    ids = torch.zeros(7, dtype=torch.int32), torch.zeros(4, 2, dtype=torch.int32)
    example = torch.zeros(2, num_dense), *ids, *([torch.zeros(7)] if is_weighted else [])
    (tmp_path / "dlrm").mkdir()
    for labels, scores in ((1, [-1]), (3, [-1, 3])):
        write_config(tmp_path / "dlrm", example, labels)
        config = parsed(tmp_path / "dlrm" / "config.pbtxt")
        assert (config.name, config.platform, config.max_batch_size) == ("dlrm", "torch_aoti", 0)
        assert described(config.input) == [
            ("INPUT__0", "TYPE_FP32", dims),
            ("INPUT__1", "TYPE_INT32", [-1]),
            ("INPUT__2", "TYPE_INT32", [4, -1]),
            *([("INPUT__3", "TYPE_FP32", [-1])] if is_weighted else []),
        ]
        assert described(config.output) == [(f"OUTPUT__{place}", "TYPE_FP32", scores) for place in range(2)]


@pytest.mark.parametrize("more", ["quantize=int8", "quantize_tables={t_*: fp16}"])
def test_other_tables_than_fp32_are_refused(more: str) -> None:
    config = compose_config(
        "export", ExportConfig, ["checkpoint=x", "output=y", "format=[aoti,triton]", more]
    )
    with refused(ConfigError, "format=triton", "holds tables in fp32, not ..."):
        check_export(config)


@pytest.mark.long
def test_the_repository_is_verified_and_scores(triton_export: Path, mixed: Path, mixed_export: Path) -> None:
    """As the package with fbgemm's tables does; the server takes it too."""
    repository = triton_export / "triton" / "dlrm"
    assert sorted(path.name for path in repository.iterdir()) == ["1", "config.pbtxt"]
    assert len(parsed(repository / "config.pbtxt").input) == 4  # elements have weights
    assert [proof.file for proof in read_export(triton_export).proofs] == ["triton/dlrm/1/model.pt2"]
    model, other = open_export(triton_export), open_export(mixed_export)
    with EvalBatches(read_manifest(mixed / "data"), "test", model.features, batch_size=TEST) as batches:
        inputs = to_inputs(next(iter(batches)))
    torch.testing.assert_close(model.score(inputs), other.score(inputs), rtol=0, atol=1e-5)
    assert open_served(triton_export).labels == ["click"]


@pytest.mark.long
def test_the_package_runs_without_fbgemm(triton_export: Path) -> None:
    """In a process that has torch alone, as Triton has."""
    program = f"""
import sys, torch
loader = torch._C._aoti.AOTIModelPackageLoader("{triton_export}/triton/dlrm/1/model.pt2", "model", False, 1, -1)
lengths = torch.zeros({len(read_export(triton_export).features)}, 3, dtype=torch.int32)
inputs = [torch.zeros(3, {len(read_export(triton_export).dense)}), torch.zeros(0, dtype=torch.int32), lengths]
scores, logits = loader.boxed_run([*inputs, torch.zeros(0)])
assert scores.shape == logits.shape == (3,) and not any("fbgemm" in name for name in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Sums(torch.nn.Module):
    """The sum of the pooled vectors of ``tables``."""

    def __init__(self, tables: torch.nn.Module) -> None:
        super().__init__()
        self.tables = tables

    def forward(
        self, dense: Any, values: Any, lengths: Any, weights: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        sums = self.tables((values, lengths, weights)).sum(1) + dense.sum(1)
        return sums.sigmoid(), sums


def draw_inputs(rows: int, most_ids: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(rows)
    lengths = torch.randint(0, most_ids + 1, (3, rows), generator=generator, dtype=torch.int32)
    count = int(lengths.sum())
    values = torch.randint(0, 9, (count,), generator=generator, dtype=torch.int32)
    return torch.ones(rows, 2), values, lengths, torch.rand(count, generator=generator)


@pytest.mark.long
def test_tables_of_several_widths_are_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With weights of elements, for any number of rows and ids, none included. Loading leaves no files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    tables = [Table("x", 9, 8, ("a",)), Table("y", 9, 4, ("b",)), Table("z", 9, 8, ("c",), pooling="mean")]
    types = dict.fromkeys("xyz", "fp32")
    quantized = QuantizedTables(
        tables, types, lambda table: [torch.randn(table.rows, table.dim)], stacked=False
    )
    model = Sums(PlainTables(quantized)).eval()
    write_package(tmp_path / "model.pt2", model, draw_inputs(5, 3), "native", {})
    run, expected = load_package(tmp_path / "model.pt2"), Sums(quantized)
    assert not [*tmp_path.glob("aotinductor*")]
    for inputs in (draw_inputs(1, 3), draw_inputs(300, 3), draw_inputs(4, 0)):
        torch.testing.assert_close(run(inputs), expected(*inputs), rtol=0, atol=1e-5)
