"""The proposals for columns, and the dataset's YAML made of them."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import yaml

from dlrm_app.tools.checking.sample import Sample


class Proposed(NamedTuple):
    """A column's line in the YAML, with a comment after it if it is a guess."""

    name: str
    role: str
    kind: str | None = None
    separator: str | None = None
    brackets: str | None = None
    weights: str | None = None
    padding: str | None = None
    whole: bool | None = None
    format: str | None = None
    note: str = ""
    makes: tuple[str, ...] = ()
    """The kinds of columns to derive from it."""

    def entry(self) -> dict[str, object]:
        """The keys of its line."""
        values = self._asdict()
        return {key: values[key] for key in self._fields[:9] if values[key] is not None}


def as_yaml(
    name: str, origin: str, proposed: Sequence[Proposed], sample: Sample, given: Mapping[str, str]
) -> str:
    """The YAML. ``given``: label → the label that it is given."""
    labels = [each.name for each in proposed if each.role == "label"]
    lines = [f"# Proposed by dlrm-check from {origin}"]
    lines += [f"{key}: {_flow(value)}" for key, value in {"name": name, **sample.marks}.items()]
    if sample.nulls:
        lines.append(f"null_values: {_flow(sample.nulls)}  # guess: words that mean a missing value")
    if len(labels) > 1:
        lines.append(f"label: {_flow(labels[0])}  # guess: the one to learn; the others are left out")
        several = [
            {each: {"given": given[each]}} if each in given else each for each in _in_order(labels, given)
        ]
        why = "; given: no row has the one without the other" * bool(given)
        lines.append(
            f"# labels: {_flow(several)}  # in place of label: learns several, the main one first{why}"
        )
    roles = {each.role for each in proposed}
    lines += [f"# no {role} column was found" for role in ("label", "sparse") if role not in roles]
    lines.append("columns:")
    lines += [f"  - {_flow(each.entry())}" + f"  # {each.note}" * bool(each.note) for each in proposed]
    made = [
        f"  - {_flow({'name': f'{each.name}_{kind}', 'kind': kind, 'of': each.name})}"
        for each in proposed
        for kind in each.makes
        if f"{each.name}_{kind}" not in {other.name for other in proposed}
    ]
    return "\n".join([*lines, *["derived:"] * bool(made), *made, ""])


def _in_order(labels: Sequence[str], given: Mapping[str, str]) -> list[str]:
    """``labels``, each after the one that it is given."""

    def depth(label: str) -> int:
        return 1 + depth(given[label]) if label in given else 0

    return sorted(labels, key=depth)


class _Quoted(yaml.SafeDumper):
    """Writes texts that some reader of YAML takes for a number or a word of its own in quotes."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_plain = re.fullmatch(r"[^\W\d][\w ]*", text) is not None and not re.fullmatch(
        r"(?i:inf|nan|y|n)", text
    )
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_plain else _style(text))


def _style(text: str) -> str | None:
    """Quotes if Python reads ``text`` as a number, such as 1e3, which YAML 1.1 does not."""
    try:
        float(text.replace("_", ""))
    except ValueError:
        return "'" if text[:1].isdigit() else None
    return "'"


_Quoted.add_representer(str, _text)


def _flow(value: object) -> str:
    text: str = yaml.dump(
        value, Dumper=_Quoted, default_flow_style=True, width=10**9, sort_keys=False, allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...")
