"""Synthetic data: click logs with a planted signal, and the inputs of synthetic models.

Of click logs the best reachable AUC and log loss are known: ``shape`` says what the columns look like, ``signal``
plants the truth, ``draw`` makes rows, ``text`` writes them as a Criteo file, ``best`` scores the truth, ``clicks``
puts a file together. Of models' ``inputs`` the tables are known; ``shards`` writes them, ``dataset`` makes the folder.
"""

from collections.abc import Callable

from dlrm_app.config.generate import GenerateConfig
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.synthetic.best import Best
from dlrm_app.synthetic.clicks import write_clicks
from dlrm_app.synthetic.dataset import write_inputs

WRITERS: dict[str, Callable[[GenerateConfig], Best | Manifest]] = {
    "criteo": write_clicks,
    "dataset": write_inputs,
}


def generate(config: GenerateConfig) -> Best | Manifest:
    """Writes what ``config.format`` names; gives the best scores on a file of clicks, the manifest of a dataset.

    Raises ConfigError for what cannot be.
    """
    return WRITERS[config.format](config)
