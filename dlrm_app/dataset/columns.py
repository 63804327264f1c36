"""The encodings of a dataset's columns and its label, as recorded in a checkpoint.

A model can only read rows with the same encodings and label.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dlrm_app.dataset.label import SAME_LABEL, LabelRule, described_label, label_in, other_labels
from dlrm_app.dataset.lineage import Relation, relate
from dlrm_app.dataset.manifest import DenseColumn, Manifest, SparseColumn
from dlrm_app.dates import day_number
from dlrm_app.errors import DataError, Problem, first_problems
from dlrm_app.records import Json
from dlrm_app.tables.table import Table
from dlrm_app.tables.vector_rows import VectorRows
from dlrm_app.text import listed


def describe_columns(manifest: Manifest) -> Json:
    """Everything that decides which number a raw value becomes; files of encodings are given by their checksums.

    Includes ``lineage``, without the growth of each day, if vocabularies grow, and ``label``, if rows have one.
    """
    lineage = manifest.encoding_lineage
    return {
        "dense": [{"name": c.name, "transform": c.transform} for c in manifest.dense],
        "sparse": [
            {
                "name": c.name,
                "num_embeddings": c.num_embeddings,
                "encoding": c.encoding,
                "multi_hot": c.multi_hot,
                **({"weights": c.weights} if c.weights else {}),
            }
            for c in manifest.sparse
        ],
        **(
            {"vectors": [{"name": c.name, "size": c.size} for c in manifest.vectors]}
            if manifest.vectors
            else {}
        ),
        **({"lineage": asdict(lineage)} if lineage else {}),
        **described_label(manifest),
    }


def is_opinion(column: DenseColumn) -> bool:
    """True if the column estimates the click, from other rows or by another model; False for a number of the log."""
    return column.transform["kind"] in ("target", "logit")


def number_features(columns: Sequence[DenseColumn]) -> list[int]:
    """The positions of the dense columns that hold numbers of the log."""
    return [place for place, column in enumerate(columns) if not is_opinion(column)]


def refuse_other_columns(
    known: Json,
    manifest: Manifest,
    features: Collection[str],
    model: Path,
    encoding: str,
    takes: Collection[str] = (),
    label: LabelRule = SAME_LABEL,
) -> None:
    """Raises DataError naming every column that ``manifest`` and the dataset of ``model`` encode differently.

    Another label is named too.

    ``encoding``: the setting to preprocess with, as a cure; other arguments as in ``column_problems``.
    """
    refusals: list[Problem] = []
    if not label.accepts and (differ := other_labels(label_in(manifest), known)):
        given, then = differ
        rule = f"has the label {given.text}, {model} has learnt {then.text}"
        cure = f"give a dataset with dataset.label={then.name}"
        refusals.append(
            Problem(str(manifest.path), rule, cure).also(label.setting and f"or add {label.setting}")
        )
    if problems := column_problems(known, manifest, features, takes):
        rule = f"is encoded in another way than what {model} was trained on"
        cure = f"preprocess with encoding=from_dataset {encoding}, so that ids mean the same"
        refusals += [Problem(str(manifest.path), rule, cure), *first_problems(problems, 8)]
    if refusals:
        raise DataError(*refusals)


def read_as_known(
    known: Json,
    manifest: Manifest,
    features: Collection[str],
    model: Path,
    encoding: str,
    label: LabelRule = SAME_LABEL,
) -> Manifest:
    """``manifest`` as ``model`` reads it: its own dense columns, in its order, where there are more.

    If its vocabularies were grown from the model's, later ids are read as rare values.

    Raises DataError like ``refuse_other_columns``, but accepts older or newer days of the model's vocabularies.
    """
    names, there = [each["name"] for each in known["dense"]], {each.name: each for each in manifest.dense}
    if there.keys() >= {*names}:
        manifest = replace(manifest, dense=[there[name] for name in names])
    refuse_other_columns(known, manifest, features, model, encoding, ("newer", "older"), label)
    relation = relate(known, describe_columns(manifest))
    return replace(manifest, known_on=relation.day if relation.kind == "newer" else None)


def column_problems(
    known: Json, manifest: Manifest, features: Collection[str], takes: Collection[str] = ()
) -> list[Problem]:
    """Reasons why rows of ``manifest`` do not have the same meaning as those of a model's own dataset, ``known``.

    ``features``: the sparse columns that the model reads. A vocabulary of another day is accepted if its ``Relation``
    to the model's is in ``takes``: "newer", or "older" if no id was given to another value since.
    """
    given = describe_columns(manifest)
    relation = relate(known, given)
    is_taken = relation.kind in takes
    names = [[column["name"] for column in columns["dense"]] for columns in (known, given)]
    if names[0] != names[1]:
        problems = [Problem("dense", f"columns are {', '.join(names[1])}, the model's {', '.join(names[0])}")]
    else:
        problems = [
            problem
            for old, new in zip(known["dense"], given["dense"], strict=True)
            if not (is_taken and _is_same_kind_of_file(old["transform"], new["transform"]))
            for problem in _differences(old, new, ["transform"])
        ]
    vectors = [{c["name"]: c["size"] for c in columns.get("vectors", [])} for columns in (known, given)]
    if vectors[0] != vectors[1]:
        words = [
            ", ".join(f"{name} of size {size}" for name, size in each.items()) or "none" for each in vectors
        ]
        problems.append(Problem("vectors", f"are {words[1]}, the model's {words[0]}"))
    for column in known["sparse"]:
        if column["name"] in features:
            problems += _sparse_problems(column, known, given, relation, is_taken)
    return problems


def _sparse_problems(
    column: Json, known: Json, given: Json, relation: Relation, is_taken: bool
) -> Iterator[Problem]:
    """Of a sparse column of ``known``, beside the one of its name in ``given``."""
    name, keys = column["name"], ("num_embeddings", "multi_hot", "encoding")
    there = next((each for each in given["sparse"] if each["name"] == name), None)
    if there is None:
        yield Problem(name, "is not one of its sparse columns")
        return
    if column.get("weights") != there.get("weights"):
        weights = [each.get("weights") or "none" for each in (there, column)]
        yield Problem(name, f"has the element weights {weights[0]}, the model reads {weights[1]}")
    if all(_content(column[key]) == _content(there[key]) for key in keys):
        return
    if relation.day is None or not _is_same_kind_of_file(column["encoding"], there["encoding"]):
        yield from _differences(column, there, keys)
    elif not is_taken:
        days = [f"day {c['lineage']['day']}" if "lineage" in c else "an earlier day" for c in (given, known)]
        yield Problem(name, f"has a vocabulary of {days[0]}, the model's of {days[1]}")
    elif relation.kind == "older":
        again = known["lineage"]["given_again"].get(name)
        if again is not None and day_number(again) > relation.day:
            rule = f"has a vocabulary whose ids were given to other values since, on day {again}"
            yield Problem(name, rule)


def sharing_problems(tables: Sequence[Table], manifest: Manifest) -> list[Problem]:
    """Problems: features that give a value another row in their table than the table's first feature does."""
    columns = {column.name: column for column in manifest.sparse}
    cures = {"vocab": "encoding.shared=[[{}, {}]]", "hash": "one encoding.num_embeddings for {} and {}"}
    return [
        Problem(
            f"table {table.name}",
            f"is read by {first.name} and {name}, which give the same value different rows",
            "give each a table, or preprocess with "
            f"{cures.get(first.encoding['kind'], '').format(first.name, name)}",
        )
        for table in tables
        for first in [columns[table.features[0]]]
        for name in table.features
        if not have_same_ids(columns[name], first)
    ]


def repeated_columns(manifest: Manifest) -> list[tuple[str, ...]]:
    """(column of one value, lists with the same vocabulary …): features that share a table if none is described."""
    groups: dict[str, list[SparseColumn]] = {}
    for column in manifest.sparse:
        if column.encoding["kind"] == "vocab":
            groups.setdefault(column.encoding["checksum"], []).append(column)
    found = []
    for group in groups.values():
        one_hot = [column.name for column in group if not column.multi_hot]
        if one_hot and len(one_hot) < len(group):
            found.append((one_hot[0], *(column.name for column in group if column.multi_hot)))
    return found


def vectors_of(sparse: Sequence[Json], folder: Path) -> dict[str, VectorRows]:
    """Column of vectors by raw value → these, of the dataset in ``folder`` whose columns ``sparse`` describes."""
    rules = {column["name"]: column["encoding"].get("vectors") for column in sparse}
    return {name: VectorRows.of(rule, folder) for name, rule in rules.items() if rule}


def vectors_in(manifest: Manifest) -> dict[str, VectorRows]:
    """Column of vectors by raw value → these, in the dataset of ``manifest``."""
    return vectors_of(describe_columns(manifest)["sparse"], manifest.folder)


def columns_of_log(manifest: Manifest) -> dict[str, list[str]]:
    """Column of the log → the columns of the dataset that are made of it: itself, its buckets, click rates, crosses,
    vectors and other derived columns. A column of the dataset may be made of several.
    """
    rules = {column.name: column.transform for column in manifest.dense}
    rules |= {column.name: column.encoding for column in manifest.sparse}

    def origins(name: str) -> list[str]:
        rule = rules.get(name, {})
        source = rule.get("column")  # of the ids that MLPerf's rule adds, it is a number
        parts = [source] if isinstance(source, str) else []
        parts = rule["derived"]["of"] if "derived" in rule else parts
        if not parts:
            return [name]
        return list(dict.fromkeys(origin for part in parts for origin in origins(part)))

    made: dict[str, list[str]] = {}
    for name in (*rules, *(column.name for column in manifest.vectors)):
        for origin in origins(name):
            made.setdefault(origin, []).append(name)
    return made


def weighted_columns(manifest: Manifest) -> list[str]:
    """The columns of lists whose elements have weights."""
    return [column.name for column in manifest.sparse if column.weights]


def attention_problems(tables: Sequence[Table], manifest: Manifest) -> list[Problem]:
    """Problems: lists that other lists are to be pooled by."""
    lists = {column.name for column in manifest.sparse if column.multi_hot}
    return [
        Problem(
            f"table {table.name}",
            f"pools by attention to {table.attention.target}, which is a list",
            f"name a feature with one value a row: {listed(one_hot)}" if one_hot else "use pooling: mean",
        )
        for table in tables
        if table.attention and table.attention.target in lists
        for one_hot in [[name for name in table.features if name not in lists]]
    ]


def have_same_ids(first: SparseColumn, second: SparseColumn) -> bool:
    """True if both columns give every value the same id."""
    return _id_rule(first) == _id_rule(second)


def _id_rule(column: SparseColumn) -> list[object]:
    """Everything that decides the id of a value, if values are known."""
    rule = [column.encoding.get(key) for key in ("kind", "function", "raw", "checksum", "boundaries")]
    return [*rule, column.num_embeddings if column.encoding["kind"] == "hash" else None]


def _differences(known: Json, given: Json, keys: Sequence[str]) -> list[Problem]:
    return [
        Problem(known["name"], f"has other values in its {known[key]['file']}")
        if _is_same_kind_of_file(known[key], given[key]) and known[key]["checksum"] != given[key]["checksum"]
        else Problem(known["name"], f"has {key} {given[key]!r}, the model knows {known[key]!r}")
        for key in keys
        if _content(known[key]) != _content(given[key])
    ]


def _content(rule: Any) -> Any:
    """``rule`` without the name of its file, whose checksum says what it holds."""
    if isinstance(rule, dict) and "checksum" in rule:
        return {key: value for key, value in rule.items() if key != "file"}
    return rule


def _is_same_kind_of_file(known: Any, given: Any) -> bool:
    """True for encodings or transforms of the same kind that have a file; the content may differ."""
    return isinstance(known, dict) and "file" in known and known["kind"] == given["kind"]
