"""Synthetic data: click logs with a planted signal, and the inputs of synthetic models.

For click logs the best reachable AUC and log loss are known: ``distribution`` draws rows, ``signal``
plants the truth and scores it, ``days`` changes ids and truth day by day, ``clicks`` writes Criteo
files. ``inputs`` draws the inputs of models with given tables.
"""

from dlrm_app.config.generate import GenerateConfig
from dlrm_app.tools.synthetic.clicks import Clicks, write_clicks
from dlrm_app.tools.synthetic.inputs import ModelInputs, write_inputs


def generate(config: GenerateConfig) -> Clicks | ModelInputs:
    """Writes the data that ``config.format`` names. Raises ConfigError for impossible settings."""
    return write_clicks(config) if config.format == "criteo" else write_inputs(config)
