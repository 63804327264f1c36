"""Synthetic data: click logs with a planted signal, and the inputs of synthetic models.

Of click logs the best reachable AUC and log loss are known: ``distribution`` draws rows, ``signal`` plants the truth and
scores it, ``days`` changes ids and truth day by day, ``clicks`` writes Criteo files. ``inputs`` of models are drawn for given tables; ``dataset`` makes their folder.
"""

from collections.abc import Callable

from dlrm_app.config.datasets import GenerateConfig
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.synthetic.clicks import write_clicks
from dlrm_app.synthetic.dataset import write_inputs
from dlrm_app.synthetic.signal import Best

WRITERS: dict[str, Callable[[GenerateConfig], list[Best] | Manifest]] = {
    "criteo": write_clicks,
    "dataset": write_inputs,
}


def generate(config: GenerateConfig) -> list[Best] | Manifest:
    """Writes what ``config.format`` names; gives the best scores on each file of clicks, the manifest of a dataset.

    Raises ConfigError for what cannot be.
    """
    return WRITERS[config.format](config)
