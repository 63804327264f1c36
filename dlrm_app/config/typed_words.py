"""Reads a dataset's YAML with its texts as they are typed: YAML makes false of no, 1000.0 of 1e3, 750 of 12:30."""

from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf._utils import get_yaml_loader

_TEXTS = (
    *("name", "label", "labels", "null_values", "of", "given", "weights_of", "format", "zone"),
    *("separator", "weights", "padding", "brackets", "delimiter", "quote"),
)
"""Keys whose values are texts, alone, in lists, and as the names of settings in lists."""
_READ = ("bool", "int", "float", "timestamp")


def read_dataset_yaml(text: str) -> Any:
    """The content of ``text``, where YAML's words stay texts if a text is meant. Raises the parser's errors."""
    loader = get_yaml_loader()(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _keep_texts(node)
        return OmegaConf.to_container(OmegaConf.create(loader.construct_document(node)), resolve=False)
    finally:
        loader.dispose()


def _keep_texts(node: yaml.Node) -> None:
    """Makes texts of the values of ``_TEXTS``, wherever these keys are."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value in _TEXTS:
                _as_texts(value)
            _keep_texts(value)
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _keep_texts(each)


def _as_texts(node: yaml.Node) -> None:
    if isinstance(node, yaml.ScalarNode) and node.tag.removeprefix("tag:yaml.org,2002:") in _READ:
        node.tag = "tag:yaml.org,2002:str"
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _as_texts(each)
            for key, _ in each.value if isinstance(each, yaml.MappingNode) else ():
                _as_texts(key)
