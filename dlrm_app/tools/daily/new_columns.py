"""Refuses columns and labels that a day adds and its training does not allow, before the day is encoded."""

from collections.abc import Mapping
from pathlib import Path

from dlrm_app.config.days import described_log, tables_to_begin
from dlrm_app.config.overrides import Settings
from dlrm_app.dataset.columns import repeated_columns, vectors_in, weighted_columns
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.encoding.column_settings import new_columns, new_numbers
from dlrm_app.errors import ConfigError
from dlrm_app.logs.labels import with_one_label
from dlrm_app.logs.read_spec import read_spec
from dlrm_app.tables.specs import resolve_tables
from dlrm_app.tables.table import features_of
from dlrm_app.training.warm_start import column_problems, read_previous


def refuse_new_columns(called: Mapping[str, Settings], parent: Manifest, model: Path) -> None:
    """Raises ConfigError if the run in ``model`` reads other columns than the day's run would, and
    ``train.warm_start.allow`` does not list their kind.

    ``called``: command → the day's settings; ``parent``: the dataset whose columns the day keeps.
    """
    tables_config, allow = tables_to_begin(called["train"])
    crosses = parent.config.get("encoding", {}).get("crosses")
    spec = read_spec(with_one_label(described_log(called["preprocess"])), crosses)
    ids = {column.name: column.num_embeddings for column in parent.sparse}
    ids |= dict.fromkeys(new_columns(parent, spec), 1)
    groups = repeated_columns(parent), weighted_columns(parent)
    tables = resolve_tables(tables_config, ids, *groups, vectors_in(parent))
    features = features_of(tables)
    features += [column.name for column in spec.looked_up if column.name not in ids]
    features += [column.name for column in spec.vectors]
    dense = [*(column.name for column in parent.dense), *new_numbers(parent, spec)]
    previous, _ = read_previous(model)
    if problems := column_problems(previous, features, dense, spec.labels, allow):
        raise ConfigError(*problems)
