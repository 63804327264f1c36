"""Synthetic data: click logs with a planted signal, and the inputs of synthetic models.

For click logs the best reachable AUC and log loss are known: ``distribution`` draws rows, ``signal`` plants the truth and
scores it, ``days`` changes ids and truth day by day, ``clicks`` writes Criteo files. ``inputs`` draws the inputs of models with given tables.
"""

from dlrm_app.config.datasets import GenerateConfig
from dlrm_app.dataset.manifest import Manifest
from dlrm_app.synthetic.clicks import write_clicks
from dlrm_app.synthetic.inputs import write_inputs
from dlrm_app.synthetic.signal import Best


def generate(config: GenerateConfig) -> list[Best] | Manifest:
    """Writes the data that ``config.format`` names. Returns the best scores on each file of clicks, or the manifest of a dataset.

    Raises ConfigError for impossible settings.
    """
    return write_clicks(config) if config.format == "criteo" else write_inputs(config)
