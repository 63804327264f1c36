"""The combinations of a ``--multirun``: which there are, what each is called, and whether they keep out of each other's way."""

import itertools
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType

from dlrm_app.config.compose import checked_config, compose_tree, conf_dir
from dlrm_app.errors import ConfigError, DlrmError, refuse_if
from dlrm_app.text import listed


@dataclass(frozen=True)
class Combination:
    """One run of a sweep."""

    overrides: Sequence[str]
    values: Mapping[str, str]
    """Key or group → value, of those that have several in the sweep."""

    @property
    def name(self) -> str:
        """What it does not share with all others: ``trainer.seed=1 model=dcn``."""
        return " ".join(f"{key}={value}" for key, value in self.values.items())


@dataclass(frozen=True)
class Sweep:
    """A ``--multirun``; its combinations are None where a sweeper makes them up on its way."""

    combinations: Sequence[Combination] | None
    swept: Sequence[str]
    """Keys and groups with several values."""

    def name_of(self, number: int) -> str:
        """Of the combination ``number``, counted from 0: ``2 of 4: trainer.seed=1``."""
        if self.combinations is None:
            return str(number + 1)
        return f"{number + 1} of {len(self.combinations)}: {self.combinations[number].name}"

    def names_after(self, number: int) -> list[str]:
        """What the combinations after ``number`` are called."""
        return [each.name for each in (self.combinations or ())[number + 1 :]]


def find_sweep(overrides: Sequence[str]) -> Sweep:
    """The sweep of checked ``overrides``, its combinations in the order in which they run."""
    values: dict[str, list[str]] = {}
    swept, is_known = [], True
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        key = override.get_key_element()
        values[key] = [override.input_line or ""]
        if override.is_sweep_override():
            swept.append(override.key_or_group)
            is_known &= (
                override.is_discrete_sweep() and override.value_type is not ValueType.GLOB_CHOICE_SWEEP
            )
            values[key] = _lines(key, override) if is_known else []
        is_known &= not override.key_or_group.startswith(("hydra/sweeper", "hydra.sweeper"))
    if not is_known:
        return Sweep(None, swept)
    several = {key for key, lines in values.items() if len(lines) > 1}
    products = itertools.product(*values.values())
    return Sweep([_combination(dict(zip(values, each, strict=True)), several) for each in products], swept)


def check_sweep(
    sweep: Sweep, command: str, schema: type[Any], overrides: Sequence[str], validate: Callable[[Any], None]
) -> None:
    """Composes and validates all combinations. Raises ConfigError naming those that are wrong, and a shared output."""
    if sweep.combinations is None:
        shared = [line for line in overrides if line.startswith("output=") and "${" not in line]
        refuse_if([_shared_output(line.removeprefix("output="), "all", sweep) for line in shared])
        return
    faults: dict[str, list[Combination]] = {}
    outputs: dict[Path, int] = {}
    for number, combination in enumerate(sweep.combinations):
        try:
            tree, _ = compose_tree(command, schema, [*combination.overrides, f"hydra.job.num={number}"])
            config = checked_config(tree, schema, [], validate)
        except DlrmError as error:
            for problem in error.problems if isinstance(error, ConfigError) else [str(error)]:
                faults.setdefault(problem, []).append(combination)
        else:
            if output := getattr(config, "output", None):
                outputs[Path(output)] = outputs.get(Path(output), 0) + 1
    problems = [_with_place(problem, wrong, sweep.combinations) for problem, wrong in faults.items()]
    problems += [_shared_output(path, count, sweep) for path, count in outputs.items() if count > 1]
    refuse_if(problems)


def place_in_sweep() -> tuple[int, bool]:
    """Of the run that Hydra has started in this process: its number, from 0, and whether others wait for its end."""
    hydra = HydraConfig.get()
    return int(hydra.job.num), hydra.runtime.choices["hydra/launcher"] == "basic"


def _lines(key: str, override: Override) -> list[str]:
    return [f"{key}={value}" for value in override.sweep_string_iterator()]


def _combination(lines: dict[str, str], several: set[str]) -> Combination:
    values = {key: line.partition("=")[2] for key, line in lines.items() if key in several}
    return Combination(list(lines.values()), values)


def _with_place(problem: str, wrong: Sequence[Combination], combinations: Sequence[Combination]) -> str:
    """``problem`` with what the ``wrong`` combinations have and no other has, if not all of them are wrong."""
    if len(wrong) == len(combinations):
        return problem
    values = {key: _values_of(key, wrong) for key in wrong[0].values}
    alike = [each for each in combinations if all(each.values[key] in values[key] for key in values)]
    if len(alike) > len(wrong):
        return f"{problem} (with {listed([each.name for each in wrong])})"
    telling = [key for key in values if values[key] != _values_of(key, combinations)]
    return f"{problem} (with {' '.join(f'{key}={listed(values[key])}' for key in telling)})"


def _values_of(key: str, combinations: Sequence[Combination]) -> list[str]:
    return list(dict.fromkeys(each.values[key] for each in combinations))


def _shared_output(output: str | Path, count: int | str, sweep: Sweep) -> str:
    """The refusal, with an ``output`` that works as it stands."""
    path = Path(output)
    apart = path.with_name(f"{path.stem}-{_telling(sweep)}{path.suffix}")
    return (
        f"output={output} is that of {count} combinations, which would take each other's files: "
        f"give each its own, as {shlex.quote(f'output={apart}')}"
    )


def _telling(sweep: Sweep) -> str:
    """Text that is another for each combination, by their values where these are fit for a name."""
    groups = {path.name for path in conf_dir().iterdir() if path.is_dir()}
    values = [value for each in sweep.combinations or () for value in each.values.values()]
    if not values or not all(
        value.replace("_", "").replace(".", "").replace("-", "").isalnum() for value in values
    ):
        return "${hydra:job.num}"
    return "-".join(
        f"{key}-${{hydra:runtime.choices.{key}}}" if key in groups else f"{key.split('.')[-1]}-${{{key}}}"
        for key in sweep.swept
    )
