"""Synthetic click logs with a planted signal, so that the best reachable AUC and log loss are known.

``shape`` says what the columns look like, ``signal`` plants the truth, ``draw`` makes rows, ``text`` writes
them as a Criteo file, ``best`` scores the truth, ``clicks`` puts a file together.
"""

from collections.abc import Callable

from dlrm_app.config.generate import GenerateConfig
from dlrm_app.data.synthetic.best import Best
from dlrm_app.data.synthetic.clicks import write_clicks

WRITERS: dict[str, Callable[[GenerateConfig], Best]] = {"criteo": write_clicks}


def generate(config: GenerateConfig) -> Best:
    """Writes what ``config.format`` names; gives the best reachable scores on it."""
    return WRITERS[config.format](config)
