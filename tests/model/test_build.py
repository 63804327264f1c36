"""What the registry of architectures refuses."""

import pytest
import torch
from torch import nn

from dlrm_app.config.train import ModelConfig
from dlrm_app.errors import ConfigError
from dlrm_app.model.architectures import ModelSpec
from dlrm_app.model.build import build_model
from dlrm_app.tables.specs import Table
from tests.refusals import refused


@pytest.mark.parametrize("kind", ["dlrm", "concat"])
def test_a_table_named_like_a_module_dict_attribute_is_refused(kind: str) -> None:
    config = ModelConfig(kind=kind, bottom_mlp=[8] if kind == "dlrm" else [], top_mlp=[8])
    with pytest.raises(KeyError):  # what torch would say
        nn.ModuleDict({"items": nn.Identity()})
    with refused(
        ConfigError, "table items", "cannot have this name, because torch's ModuleDict has that attribute"
    ):
        build_model(ModelSpec(config, [Table("items", 10, 4, ("item",))], 2), torch.device("cpu"))
