"""Schemas: what their annotations and rules refuse, as records."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from dlrm_app.config.schema import REQUIRED, Section, build, required, unknown_key
from dlrm_app.config.values import Count
from dlrm_app.errors import Problem


@dataclass(slots=True)
class Part(Section):
    kind: Literal["sum", "mean"] = "sum"
    share: Annotated[float, Meta(gt=0, le=1)] | None = None
    sizes: list[Count] = field(default_factory=list)


@dataclass(slots=True)
class Whole(Section):
    name: str = REQUIRED
    rows: Count = REQUIRED
    fast: bool | Literal["auto"] = False
    part: Part = field(default_factory=Part)

    def rules(self) -> list[Problem]:
        return [Problem("rows", "must be even", "add one", self.rows)] if self.rows % 2 else []


def test_values_get_their_fields_types_and_missing_ones_defaults() -> None:
    values = {"name": 7, "rows": "8", "fast": "auto", "part": {"share": 1, "sizes": ["2"]}}
    problems: list[Problem] = []
    config = build(Whole, values, problems)
    assert (config, problems) == (Whole("7", 8, "auto", Part("sum", 1.0, [2])), [])
    assert config is not None
    assert config.problems() == []


def test_unknown_missing_and_mistyped_keys_come_together() -> None:
    problems: list[Problem] = []
    assert build(Whole, {"nam": 1, "rows": "many"}, problems) is None
    mistyped = Problem("rows", "must be a whole number", value="many")
    assert problems == [unknown_key("nam", Whole), mistyped, required("name")]
    assert str(problems[0]) == "nam is not a known key: did you mean name?"
    assert str(mistyped) == "rows must be a whole number, got 'many'"


def test_problems_of_all_sections_are_reported_together() -> None:
    config = Whole("x", 0, "autp", Part("meen", 0.0, [3, 0]))  # type: ignore[arg-type]
    assert config.problems() == [
        Problem("rows", "must be at least 1", value=0),
        Problem("fast", "must be one of false, true, auto", "did you mean auto?", "autp"),
        Problem("part.kind", "must be one of sum, mean", "did you mean mean?", "meen"),
        Problem("part.share", "must be above 0 and at most 1", value=0.0),
        Problem("part.sizes", "must be at least 1", value=0),
    ]
    assert Whole("x", 3).problems("a.") == [Problem("a.rows", "must be even", "add one", 3)]
