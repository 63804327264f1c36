"""The spec of a frozen table, whose rows, width and type are those of the vectors that a dataset keeps."""

from collections.abc import Mapping

from dlrm_app.errors import ConfigError, Problem, refuse_if
from dlrm_app.tables.vector_rows import VectorRows

_OF_VECTORS = ("rows", "dim", "data_type", "init", "init_scale", "init_from", "optimizer", "count")
"""Keys of a spec that a frozen table takes from the dataset, or does not have."""


def frozen_spec(spec: object, vectors: Mapping[str, VectorRows], rows: Mapping[str, int]) -> object:
    """``spec``, with the rows and the width of the vectors that its features look up, if they do.

    Raises ConfigError for keys that such a table does not have.
    """
    if not isinstance(spec, Mapping) or not isinstance(spec.get("features"), list):
        return spec
    place, features = f"tables.specs ({spec.get('name', 'no name')})", spec["features"]
    found = [vectors[name] for name in features if isinstance(name, str) and name in vectors]
    if not found:
        if spec.get("train") is False:
            rule, cure = "is for tables of columns of kind: vectors", "leave it out, or name such a column"
            raise ConfigError(Problem(f"{place}.train", rule, cure, False))
        return spec
    faults = []
    if spec.get("train"):
        cure = "leave it out, or give the column that they are of a table"
        faults.append(Problem("train", "is for tables of other columns: vectors are not trained", cure, True))
    if len({each.checksum for each in found}) > 1 or len(found) < len(features):
        faults.append(Problem("features", "must look up the same vectors", "give each a table", features))
    if isinstance(spec.get("pooling"), Mapping):
        faults.append(Problem("pooling", "must be sum or mean of a table of vectors", value=spec["pooling"]))
    own = {
        "rows": max(rows[name] for name in features if name in rows),
        "dim": -(-found[0].width // 4) * 4,  # fbgemm's vector width
        "data_type": found[0].dtype,
    }
    for key in _OF_VECTORS:
        if key in spec and spec[key] != own.get(key):
            rule = f"is {own[key]} in the dataset" if key in own else "is not a key of a table of vectors"
            faults.append(Problem(key, rule, "leave it out", spec[key]))
    refuse_if([fault.within(place, ".") for fault in faults])
    kept = {key: value for key, value in spec.items() if key not in (*_OF_VECTORS, "train")}
    return {**kept, **own}
