"""Makes the columns of a dataset, with passes for vocabularies, moments and target columns."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dlrm_app.dataset.encoding_files import copy_encoding_files
from dlrm_app.dataset.lineage import Growth, Lineage
from dlrm_app.dataset.manifest import DenseColumn, Manifest, SparseColumn
from dlrm_app.dates import day_number
from dlrm_app.encoding.columns import (
    MadeColumns,
    columns_of,
    lineage_after,
    lineage_with_new_vocabularies,
    with_derivations,
    with_sizes,
)
from dlrm_app.encoding.dense import is_target
from dlrm_app.encoding.sparse import FIRST_ID
from dlrm_app.preprocessing.pass_runner import PassRunner
from dlrm_app.preprocessing.passes.plan import CountedUnit
from dlrm_app.preprocessing.passes.study import StudiedUnit, ValueStudy, standardized
from dlrm_app.preprocessing.passes.targets import (
    AddUpClicks,
    CountClicks,
    grow_target,
    refuse_if_clicks_are_too_many,
    write_learnt,
)
from dlrm_app.preprocessing.passes.vectors import MadeVectors, MakeVectors
from dlrm_app.preprocessing.passes.vocabulary import (
    BYTES_PER_VALUE,
    MadeVocabulary,
    MakeVocabularies,
    refuse_if_too_large,
)
from dlrm_app.preprocessing.request import DatasetPlan
from dlrm_app.text import listed

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ColumnMaker:
    """Makes the columns of the dataset that ``plan`` describes; ``passes`` runs passes over its rows."""

    plan: DatasetPlan
    passes: PassRunner

    def make(self) -> MadeColumns:
        """The columns, with their vocabularies, vectors, moments and targets."""
        base, looked_up = self.plan.columns.base, self._make_vectors()
        made = self._make_new() if base is None else self._make_from(base)
        names = {column.name for column in looked_up}
        sparse = [*(column for column in made.sparse if column.name not in names), *looked_up]
        return replace(made, sparse=sparse, vectors=self.plan.columns.vectors)

    def _make_vectors(self) -> list[SparseColumn]:
        """The columns that look vectors up, made first: a file that cannot be used is refused before passes over rows."""
        rules, output = self.plan.columns, self.plan.inputs.output
        day = day_number(rules.day) if rules.day is not None else None
        journal = self.passes.journal("vectors", MadeVectors)
        work = MakeVectors(output, rules.looked_up, rules.vector_type, rules.grows_from, day, journal)
        made = self.passes.over_numbers(work, len(rules.looked_up)) if rules.looked_up else []
        for column, growth in [(each.column, each.growth) for each in made]:
            was = f"{growth.known:,} known before, of which {growth.changed:,} have another now, and "
            logger.info(
                f"{column.name}: vectors of {column.encoding['vectors']['width']} numbers for {column.distinct:,} "
                f"values, {was * bool(growth.known)}{growth.new:,} new"
            )
        return [each.column for each in made]

    def _make_new(self) -> MadeColumns:
        rules, spec = self.plan.columns, self.plan.inputs.spec
        dense, sparse = list(rules.dense), list(rules.hashed)
        dense, made, growth = self._study_columns(dense)
        order = {column.name: number for number, column in enumerate(spec.sparse)}
        sparse = sorted([*sparse, *made.values()], key=lambda column: order[column.name])
        dense, sparse = with_derivations(dense, sparse, spec)
        sparse = [*with_sizes(sparse, rules.sizes), *rules.buckets]
        dense += self._make_targets(dense, sparse)
        return MadeColumns(dense, sparse, None if rules.day is None else Lineage(rules.day, growth=growth))

    def _study_columns(
        self, dense: list[DenseColumn]
    ) -> tuple[list[DenseColumn], dict[str, SparseColumn], list[Growth]]:
        """Returns (``dense`` with moments, new columns with vocabularies, how vocabularies have grown)."""
        lack_moments = any(column.transform == {"kind": "standardize"} for column in self.plan.columns.dense)
        if not (lack_moments or self.plan.columns.groups):
            return dense, {}, []
        units = self._study(wants_moments=lack_moments)
        return standardized(dense, units), *self._make_vocabularies(units)

    def _make_from(self, base: Manifest) -> MadeColumns:
        """The columns of ``base``, and those that it lacks, in the order of the format; buckets and targets come last.

        If its vocabularies grow, the values of these rows are added to them.
        """
        rules, spec, output = self.plan.columns, self.plan.inputs.spec, self.plan.inputs.output
        grows = rules.grows_from is not None
        if not grows:
            copy_encoding_files(base, output)
        elif not (base.lineage and base.lineage.growth):
            logger.info(
                f"{base.path} keeps no values that wait for an id: values that it saw too seldom are counted from "
                "today on"
            )
        columns = columns_of(base)
        numbers = {column.name: column for column in (*rules.dense, *columns.dense)}
        dense = [numbers.pop(column.name) for column in spec.dense]
        dense, made, growth = self._study_columns(dense)
        before = {column.name: column for column in columns.sparse}
        sparse = [
            replace(
                new, encoding={**before[name].encoding, **new.encoding} if name in before else new.encoding
            )
            if (new := made.get(name))
            else before[name]
            for name in (column.name for column in spec.sparse)
        ]
        self._report_new_columns(base, [*rules.dense, *(c for c in sparse if c.name not in before)])
        dense, sparse = with_derivations(dense, sparse, spec)
        raw = {column.name for column in sparse}
        sparse += [column for column in columns.sparse if column.name not in raw]
        targets = [column for column in numbers.values() if is_target(column)]
        if not grows:
            return MadeColumns([*dense, *targets], sparse, lineage_with_new_vocabularies(base, sparse))
        day = rules.day or ""
        grown = [grow_target(column, base, output, sparse, day_number(day)) for column in targets]
        return MadeColumns([*dense, *grown], sparse, lineage_after(base, day, growth))

    def _report_new_columns(self, base: Manifest, new: Sequence[DenseColumn | SparseColumn]) -> None:
        if new:
            names = listed([column.name for column in new], 8)
            logger.info(
                f"{base.path} lacks {names}: its columns keep their ids, and sparse ones among these get a "
                "vocabulary of their own"
            )

    def _study(self, *, wants_moments: bool) -> list[StudiedUnit]:
        inputs, rules = self.plan.inputs, self.plan.columns
        sees_others = rules.grows_from is not None
        journal = self.passes.journal("study", StudiedUnit)
        study = ValueStudy(inputs, bool(rules.groups), wants_moments, sees_others, journal)
        return self.passes.over_units(
            study, inputs.sources if sees_others else inputs.sources_of(inputs.studied)
        )

    def _make_vocabularies(
        self, units: Sequence[StudiedUnit]
    ) -> tuple[dict[str, SparseColumn], list[Growth]]:
        """Returns (the columns with a vocabulary by name, the changes of the day to each vocabulary)."""
        rules, raw = self.plan.columns, self.plan.inputs.spec.sparse
        if not rules.groups:
            return {}, []
        studied = self.passes.journal("study", StudiedUnit)
        add_up = MakeVocabularies(
            self.plan.inputs,
            tuple(studied.path(unit.extent.name, ".counts") for unit in units),
            tuple(map(sum, zip(*(unit.entries for unit in units), strict=True))),
            rules.groups,
            rules.vocabularies,
            rules.day is not None,
            rules.grows_from,
            self.plan.memory_bytes,
            self.passes.journal("vocab", MadeVocabulary),
        )
        added = self.passes.over_numbers(add_up, len(rules.groups))
        self._warn_of_empty_vocabularies([each.column for each in added])
        num_values = sum(each.column.num_embeddings - FIRST_ID for each in added)
        refuse_if_too_large(num_values, BYTES_PER_VALUE, self.plan.memory_bytes)
        columns = {
            raw[number].name: replace(
                each.column, name=raw[number].name, multi_hot=raw[number].separator is not None
            )
            for group, each in zip(rules.groups, added, strict=True)
            for number in group
        }
        return columns, [each.growth for each in added if each.growth is not None]

    def _warn_of_empty_vocabularies(self, columns: Sequence[SparseColumn]) -> None:
        if rare := [c.name for c in columns if c.distinct and c.num_embeddings == FIRST_ID]:
            least = self.plan.config.encoding.min_count
            logger.warning(
                f"no value of {', '.join(rare)} is seen encoding.min_count={least} times: all of them share one id; "
                "lower it"
            )

    def _make_targets(
        self, dense: Sequence[DenseColumn], sparse: Sequence[SparseColumn]
    ) -> list[DenseColumn]:
        inputs, targets = self.plan.inputs, self.plan.columns.targets
        sources = tuple(number for number, column in enumerate(sparse) if column.name in targets)
        if not sources:
            return []
        columns = tuple(sparse[number] for number in sources)
        refuse_if_clicks_are_too_many(columns, self.plan.memory_bytes)
        counted = self.passes.journal("clicks", CountedUnit)
        count = CountClicks(inputs, tuple(dense), tuple(sparse), sources, counted)
        units = tuple(self.passes.over_units(count, inputs.sources_of({"train"})))
        samples = [counted.path(unit.extent.name, ".contents") for unit in units]
        contents = write_learnt(samples, inputs.output) if inputs.contents_identify_rows else {}
        add_up = AddUpClicks(
            inputs, counted, units, columns, contents, self.passes.journal("targets", DenseColumn)
        )
        num_labels = max(len(inputs.spec.labels), 1)
        return self.passes.over_numbers(add_up, num_labels * len(columns))
