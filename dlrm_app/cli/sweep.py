"""``--multirun``: checks every combination before the first starts; where one fails, says which and what is left."""

import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from dlrm_app.cli.launch import is_first_rank, or_explain, run_hydra
from dlrm_app.config.compose import checked_config
from dlrm_app.config.sweep import check_sweep, find_sweep, place_in_sweep
from dlrm_app.text import listed

logger = logging.getLogger(__name__)


def run_sweep(
    command: str,
    schema: type[Any],
    overrides: Sequence[str],
    job: Callable[[Any], Any],
    validate: Callable[[Any], Any],
) -> None:
    """Runs ``job`` with each combination of the checked ``overrides``. Raises ConfigError before the first if any is wrong."""
    sweep = find_sweep(overrides)
    check_sweep(sweep, command, schema, overrides, validate)

    def run_one(tree: Any) -> Any:
        number, is_alone = place_in_sweep()
        if is_first_rank():
            logger.info("combination %s", sweep.name_of(number))
        try:
            return or_explain(lambda: job(checked_config(tree, schema, [], validate)))
        except BaseException:
            if is_first_rank():
                left = sweep.names_after(number) if is_alone else []
                rest = f"; not started: {listed(left, most=8)}" if left else ""
                print(f"combination {sweep.name_of(number)} ended without success{rest}", file=sys.stderr)
            raise

    run_hydra(command, schema, ["--multirun", *overrides], run_one)
