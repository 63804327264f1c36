"""What metrics cost of a run: python benchmarks/metrics_share.py data.path=DATASET output=RUN [keys of dlrm-train]

CPU time of one rank, of the whole process, since the wall clock of a shared machine says little. "In the steps" is
what training itself pays: adding up losses, reading them, and looking for those that are no numbers.
"""

import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from dlrm_app.config.compose import compose_config
from dlrm_app.config.train import TrainConfig
from dlrm_app.evaluation.metrics import ClickMetrics
from dlrm_app.training import train as loop
from dlrm_app.training.loss_meter import LossMeter
from dlrm_app.training.nonfinite import NonfiniteGuard
from dlrm_app.training.table_health.health import TableHealth

seconds: dict[str, float] = defaultdict(float)
calls: dict[str, int] = defaultdict(int)


def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        started = time.process_time()
        try:
            return work(*args, **kwargs)
        finally:
            seconds[name] += time.process_time() - started
            calls[name] += 1

    return run


def main() -> None:
    for owner, method, name in (
        (LossMeter, "add", "loss meter"),
        (LossMeter, "read", "loss meter"),
        (NonfiniteGuard, "watch", "finite check"),
        (loop, "check_finite", "finite check"),
        (loop, "take_step", "steps"),
        (loop, "evaluate_split", "evaluations"),
        (loop, "evaluate", "forward and metrics"),
        (loop, "measure_curves", "curves"),
        (ClickMetrics, "update", "metrics"),
        (ClickMetrics, "compute", "metrics"),
        (TableHealth, "see", "tables' health"),
        (TableHealth, "measure", "tables' health"),
    ):
        setattr(owner, method, timed(name, getattr(owner, method)))
    loop.train(compose_config("train", TrainConfig, sys.argv[1:]))
    for name, value in seconds.items():
        print(f"{name:20} {value:8.3f} s CPU in {calls[name]:,} calls")
    in_steps = seconds["loss meter"] + seconds["finite check"]
    print(f"in the steps: {in_steps / seconds['steps']:.2%} of them")
    for name in ("metrics", "curves", "tables' health"):
        print(f"{name}: {seconds[name] / seconds['evaluations']:.2%} of the evaluations")


if __name__ == "__main__":
    main()
