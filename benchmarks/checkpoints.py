"""How long a save holds training up: python -m benchmarks.checkpoints [rows=2000000] [dim=32] [rounds=4]

One rank, one table of ``rows`` × ``dim`` with full Adagrad, as many bytes of state as of weights. In each round two
runs of the same steps, one that saves at once and one that saves in the background. "Held up": how long training waits
for a save that no other is under way before, by the wall clock and by the training thread's own CPU time; "step
beside": the median step while a save is under way, over that of the others.
"""

import statistics
import sys
import tempfile
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from dlrm_app.config.compose import compose_config
from dlrm_app.config.train import TrainConfig
from dlrm_app.runs.checkpoint.checkpoints import Checkpoints
from dlrm_app.runs.checkpoint.marker import Marker
from dlrm_app.runs.checkpoint.state import Tensors
from dlrm_app.training import train as loop
from tests.loader.dataset_fixture import write_dataset

BATCH, STEPS, SAVE_EVERY = 512, 150, 50
take_step, save = loop.take_step, Checkpoints.save


class Watch:
    """Times the steps and saves of one run."""

    def __init__(self) -> None:
        self.saves: list[tuple[float, float]] = []
        self.steps: list[tuple[float, bool]] = []
        self.pending: Future[None] | None = None

    def save(self, checkpoints: Checkpoints, tensors: Tensors, marker: Marker) -> None:
        checkpoints._writer.finish()
        wall, cpu = time.perf_counter(), time.thread_time()
        save(checkpoints, tensors, marker)
        self.saves.append((time.perf_counter() - wall, time.thread_time() - cpu))
        self.pending = checkpoints._writer._pending

    def step(self, *arguments: Any) -> None:
        started = time.perf_counter()
        take_step(*arguments)
        beside = self.pending is not None and not self.pending.done()
        self.steps.append((time.perf_counter() - started, beside))

    def result(self) -> dict[str, float]:
        """Seconds. The first save, which also imports and describes, is left out."""
        alone = statistics.median(seconds for seconds, beside in self.steps[5:] if not beside)
        beside = [seconds for seconds, is_beside in self.steps if is_beside]
        return {
            "held up": statistics.median(wall for wall, _ in self.saves[1:]),
            "held up, CPU": statistics.median(cpu for _, cpu in self.saves[1:]),
            "step": alone,
            "step beside": statistics.median(beside) / alone if beside else 1.0,
        }


def run(dataset: Path, output: Path, dim: int, in_background: bool) -> dict[str, float]:
    watch = Watch()
    loop.take_step = watch.step
    Checkpoints.save = lambda *arguments: watch.save(*arguments)  # type: ignore[method-assign]
    overrides = [
        f"data.path={dataset}",
        "data.lanes=8",
        f"tables.embedding_dim={dim}",
        "optimizer=adagrad",
        "model.bottom_mlp=[64]",
        "model.top_mlp=[64]",
        f"trainer.global_batch_size={BATCH}",
        "trainer.threads=1",
        f"checkpoint.every_steps={SAVE_EVERY}",
        "checkpoint.keep_last=1",
        f"checkpoint.asynchronous={str(in_background).lower()}",
        "report.enabled=false",
        f"output={output}",
    ]
    loop.train(compose_config("train", TrainConfig, overrides))
    size = sum(file.stat().st_size for file in next(output.glob("checkpoints/step-*")).iterdir())
    return {"MiB": size / 2**20, **watch.result()}


def main() -> None:
    chosen = {"rows": 2_000_000, "dim": 32, "rounds": 4}
    chosen |= {key: int(value) for key, value in (word.split("=") for word in sys.argv[1:])}
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_dataset(folder / "data", rows={"train": BATCH * STEPS}, one_hot=(chosen["rows"],), multi_hot=())
        for number in range(chosen["rounds"]):
            results = []
            for in_background in (False, True):
                output = folder / f"{number}-{in_background}"
                results.append(run(folder / "data", output, chosen["dim"], in_background))
                title = "in the background" if in_background else "at once"
                print(title, {key: round(value, 4) for key, value in results[-1].items()}, flush=True)
            ratios.append([results[0][key] / results[1][key] for key in ("held up", "held up, CPU")])
    wall, cpu = (statistics.median(column) for column in zip(*ratios, strict=True))
    print(f"saving at once holds training up {wall:.1f} times as long, {cpu:.1f} times in CPU time (medians)")


if __name__ == "__main__":
    main()
