"""Synthetic data: click logs with a planted signal, and the inputs of synthetic models.

Of click logs the best reachable AUC and log loss are known: ``distribution`` draws rows, ``signal`` plants the truth and
scores it, ``days`` changes ids and truth day by day, ``clicks`` writes Criteo files. ``inputs`` draws those of models for given tables into a folder.
"""

from dlrm_app.config.datasets import GenerateConfig
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.synthetic.clicks import write_clicks
from dlrm_app.synthetic.inputs import write_inputs
from dlrm_app.synthetic.signal import Best


def generate(config: GenerateConfig) -> list[Best] | Manifest:
    """Writes what ``config.format`` names; gives the best scores on each file of clicks, the manifest of a dataset.

    Raises ConfigError for what cannot be.
    """
    return write_clicks(config) if config.format == "criteo" else write_inputs(config)
