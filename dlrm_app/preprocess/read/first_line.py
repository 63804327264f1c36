"""A look at the first line of every file before work starts, for the mistakes that spoil every line alike."""

import shlex
from itertools import islice

import numpy as np

from dlrm_app.errors import refuse_if
from dlrm_app.preprocess.passes.passes import body
from dlrm_app.preprocess.read import lines
from dlrm_app.preprocess.read.parser import Parser
from dlrm_app.preprocess.units.source import Source
from dlrm_app.preprocess.units.units import TextFeed
from dlrm_app.preprocess.units.work_plan import Plan

_BYTES = 1 << 16
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def check_first_lines(plan: Plan) -> None:
    """Raises ConfigError for splits without lines, another header than the format's, labels that are there or not."""
    problems = [
        f"the {split} split has no rows: there is no line in the files of input.{split}"
        for split in dict.fromkeys(source.split for source in plan.sources)
        if all(_is_empty(source, plan) for source in plan.sources if source.split == split)
    ]
    refuse_if(problems)
    for source in plan.sources:
        find_fault = _header_fault if plan.spec.header else _label_fault
        if fault := _encoding_fault(source, plan) or find_fault(source, plan):
            problems.append(fault)
    refuse_if(problems)


def _is_empty(source: Source, plan: Plan) -> bool:
    """Whether there is no line, but for a header."""
    for text in TextFeed(source, _BYTES, last=1).items():
        return not any(start < stop for _, start, stop in body(text, plan.spec)) and text.finish().is_last
    return True


def first_line(source: Source) -> bytes:
    """Without its line end; of a longer line only the beginning."""
    for text in islice(TextFeed(source, _BYTES, last=1).items(), 1):
        block = text.load()
        return block.text[block.start : block.stop].tobytes().split(b"\n")[0].removesuffix(b"\r")
    return b""


def _encoding_fault(source: Source, plan: Plan) -> str | None:
    """Text of Windows programs: UTF-16, or a mark before the first value, which would become part of it."""
    line, path = first_line(source), shlex.quote(source.path)
    if line.startswith(_UTF_16_MARKS):
        return f"{source.path} is UTF-16: make UTF-8 of it, as by iconv -f UTF-16 -t UTF-8 {path} > NEW.tsv"
    if line.startswith(_BYTE_ORDER_MARK) and not plan.spec.header:
        return (
            f"{source.path} begins with a byte order mark, which would be part of its first value: leave it away, as by "
            f"tail -c +4 {path} > NEW.tsv"
        )
    return None


def _header_fault(source: Source, plan: Plan) -> str | None:
    spec = plan.spec_of(source.split)
    line = first_line(source).removeprefix(_BYTE_ORDER_MARK)
    quote = (spec.quote or "").encode()
    header = [
        name.strip(quote).decode("utf-8", "backslashreplace") for name in line.split(spec.delimiter.encode())
    ]
    expected = [column.name for column in spec.columns]
    if header == expected:
        return None
    return (
        f"the header of {source.path} names {', '.join(header)[:200]}; dataset={spec.name} expects "
        f"{', '.join(expected)}: correct dataset.columns, or set dataset.header=false if the first line is data"
    )


def _label_fault(source: Source, plan: Plan) -> str | None:
    """Whether the first line has exactly the label too few or too many."""
    if plan.spec.label is None:
        return None
    line = first_line(source) + b"\n"
    spec = plan.spec_of(source.split)
    text = np.frombuffer(bytearray(line + bytes(lines.PADDING)), np.uint8)  # compiled for what can be written
    _, _, rejects = Parser(spec, 1).parse(text, 0, len(line), 1)
    if not rejects or rejects[0].reason != lines.COLUMNS:
        return None
    surplus = rejects[0].detail - len(spec.columns)
    is_labelled = spec.label is not None
    if surplus == -1 and is_labelled:
        return (
            f"the first line of {source.path} has {rejects[0].detail} columns, one too few: if it has no "
            f"{spec.label} column, add input.unlabelled=[{source.split}]; else correct dataset.columns"
        )
    if surplus == 1 and not is_labelled:
        return f"the first line of {source.path} has a label: leave {source.split} out of input.unlabelled"
    return None
