"""dlrm-check on raw logs without a description: a table of a sample of their rows, and a proposed dataset= for them."""

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlrm_app.errors import Problem, refuse_if
from dlrm_app.files import output_problems, write_text
from dlrm_app.logs.sources.find_sources import find_files
from dlrm_app.result import Paragraph, Result
from dlrm_app.table import text_table
from dlrm_app.text import percent
from dlrm_app.tools.checking.description import Proposed, as_yaml
from dlrm_app.tools.checking.propose import given_labels, propose, unusable
from dlrm_app.tools.checking.sample import chosen_of, sample_rows
from dlrm_app.tools.checking.trial import rejected_share

logger = logging.getLogger(__name__)

_HEADS = ("column", "type", "missing", "distinct", "most frequent")


@dataclass(frozen=True)
class Proposal(Result):
    """A dataset's YAML for raw files, proposed from a sample of their rows.

    ``path``: the file that it was written to, if any.
    ``given``: the files as they were named.
    ``name``: the name of the dataset.
    ``has_label``: True if the files have a label column.
    ``rejected``: the share of its rows that it rejects.
    """

    yaml: str
    path: Path | None
    given: str | list[str]
    name: str
    has_label: bool
    rejected: float = 0.0

    def paragraphs(self) -> Iterable[Paragraph]:
        yield self.yaml if self.path is None else f"wrote {self.path}"


def check_raw(given: str | list[str], output: str | None) -> Proposal:
    """Proposes a dataset's YAML for ``given`` files, writes it to ``output`` if given, and logs their content."""
    refuse_if(output_problems("output", Path(output), is_new=True) if output else [])
    sources = find_files("input", given)
    sample = sample_rows(sources)
    first = sources[0].path
    refuse_if([problem.within(str(first)) for problem in unusable(sample)])
    proposed = propose(sample)
    name = re.sub(r"\W", "_", Path(first).name.partition(".")[0], flags=re.ASCII)
    origin = f"a sample of {sample.columns[0].rows:,} rows of {first}" + " and others" * (len(sources) > 1)
    lines = [f"{origin}:", text_table(_HEADS, [column.cells() for column in sample.columns])]
    lines += [", ".join(f"{key} {value!r}" for key, value in sample.marks.items())] * bool(sample.marks)
    lines += [f"{sample.bad_lines:,} lines have another number of fields"] * (sample.bad_lines > 0)
    lines += [f"{column} is {kind}, which cannot be used" for column, kind in sample.unread.items()]
    logger.info("\n".join(lines))
    refuse_if(_no_features(str(first), proposed))
    text = as_yaml(name, origin, proposed, sample, given_labels(sample, proposed))
    rejected, rejects = rejected_share(chosen_of(sources), text)
    if rejects:
        logger.warning("%s of the rows of %s are rejected: %s", percent(rejected), first, rejects[0].reason)
    path = None if output is None else Path(output)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    has_label = any(each.role == "label" for each in proposed)
    return Proposal(text, path, given, name, has_label, rejected)


def _no_features(path: str, proposed: Sequence[Proposed]) -> list[Problem]:
    """A problem, with the reason for each column, if no column can be a feature."""
    if any(each.role in ("dense", "sparse") or each.makes for each in proposed):
        return []
    left_out = [
        Problem(each.name, f"is left out, {each.note.removeprefix('guess: ')}")
        for each in proposed
        if each.role == "ignore"
    ]
    return [Problem(path, "has no column that can be a feature", "see its columns"), *left_out]
