"""The description of a dataset's label, as recorded in a checkpoint beside its columns."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from dlrm_app.dataset.manifest import LearntLabel, Manifest
from dlrm_app.records import Json, from_json


@dataclass(frozen=True)
class Label:
    """A label. Two labels with equal fields mean the same. ``name``: its column in the log."""

    name: str

    @property
    def text(self) -> str:
        """The label in words."""
        return self.name


def label_in(manifest: Manifest) -> Label | None:
    """The label of a dataset's rows; None if they have none."""
    return Label(manifest.label) if manifest.label is not None else None


def described_label(manifest: Manifest) -> Json:
    """The entry ``label`` of a description of columns and, if rows have several labels, ``labels``. They are those of
    the rows, or of the target columns; empty without a label.
    """
    label = label_in(manifest) or (
        Label(manifest.target_label) if manifest.target_label is not None else None
    )
    several = {"labels": [asdict(each) for each in manifest.labels]} if manifest.labels else {}
    return {"label": asdict(label), **several} if label else {}


def known_labels(columns: Json) -> list[LearntLabel]:
    """The labels of rows with several in a description of columns."""
    return [from_json(LearntLabel, each) for each in columns.get("labels", [])]


def as_written(labels: Sequence[LearntLabel]) -> list[object]:
    """``labels`` as ``dataset.labels`` lists them, without the factors of their losses."""
    return [{label.name: {"given": label.given}} if label.given else label.name for label in labels]


def other_labels(given: Label | None, known: Json) -> tuple[Label, Label] | None:
    """(``given``, the label in ``known``, a description of columns) if they differ.

    None if one of them has no label: rows can be scored without one.
    """
    if given is None or "label" not in known:
        return None
    then = from_json(Label, known["label"])
    return (given, then) if given != then else None


@dataclass(frozen=True)
class LabelRule:
    """The rule for other labels. ``accepts``: True if rows may have another label than the model has learnt.

    ``setting``: the setting that accepts such rows, if there is one.
    """

    accepts: bool = False
    setting: str = ""


SAME_LABEL = LabelRule()
