"""Names of what dense layers read and write: as many as there are, and each where it stands."""

from dataclasses import replace

import pytest
import torch

from dlrm_app.model import architectures
from dlrm_app.model.architectures import ARCHITECTURES, ModelSpec, architecture
from dlrm_app.model.build import build_model
from dlrm_app.model.inputs import named_axes
from tests.plain_training import compose_train
from tests.random_batches import NUM_DENSE, TABLES

DENSE = [f"i{number}" for number in range(NUM_DENSE)]
WITHOUT_BOTTOM = ("concat", "dcn_parallel", "gdcn", "gdcn_parallel", "finalnet", "dcnv3", "qnn")
WITHOUT_MLP = ("dcnv3", "qnn")


def spec_of(kind: str, *overrides: str) -> ModelSpec:
    bottom = ["model.bottom_mlp=[]"] if kind in WITHOUT_BOTTOM else []
    top = "model.top_mlp=[]" if kind in WITHOUT_MLP else "model.top_mlp=[16]"
    config = compose_train(f"model={kind}", *bottom, top, *overrides)
    return ModelSpec(config.model, TABLES, NUM_DENSE, numbers=[0, 2, 3])


@pytest.mark.parametrize("kind", sorted(ARCHITECTURES))
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("numbers", ["dense_embedding_dim=null", "dense_embedding_dim=3", "dense_knots=4"])
def test_every_axis_has_as_many_names_as_places(kind: str, size: int, numbers: str) -> None:
    if (size > 1 and not ARCHITECTURES[kind].interacts) or numbers[:-2] in ARCHITECTURES[kind].refuses:
        return
    spec = spec_of(kind, f"model.ensemble_size={size}", f"model.{numbers}")
    prefix = "" if size == 1 else "models.1."
    parameters = build_model(spec, torch.device("cpu")).state_dict()
    axes = named_axes(spec, DENSE)
    assert axes
    for name, of_each_axis in axes.items():
        shape = parameters[prefix + name].shape
        assert [len(names or range(n)) for names, n in zip(of_each_axis, shape, strict=True)] == [*shape]
        assert all(len({*names}) == len(names) for names in of_each_axis if names is not None)


def test_an_architecture_of_a_user_names_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ``name_axes`` it has none, so that a warm start begins anew with such layers."""
    monkeypatch.setattr(architectures, "ARCHITECTURES", dict(ARCHITECTURES))
    spec = ModelSpec(replace(spec_of("dlrm").config, kind="own"), TABLES, NUM_DENSE)
    build = ARCHITECTURES["dlrm"].build
    architecture("own")(build)
    assert named_axes(spec, DENSE) == {}
    architecture("own", name_axes=lambda config, widths, dense: {"weight": (dense, [*widths])})(build)
    assert named_axes(spec, DENSE) == {"weight": (DENSE, ["f1", "f2", "f3", "f4"])}


def test_strided_means_are_named_by_the_values_they_average() -> None:
    """33 values in windows of 4: of the 3 that are missing 1 stands in front."""
    (_, inputs), *_ = named_axes(spec_of("concat", "model.stride=4"), DENSE[:1]).values()
    vectors = [("f1", p) for p in range(8)] + [("f2", p) for p in range(8)] + [("f3", p) for p in range(8)]
    vectors += [("f4", p) for p in range(8)]
    assert inputs is not None
    assert list(inputs) == [frozenset(vectors[i : i + 4]) for i in range(0, 32, 4)] + ["i0"]
