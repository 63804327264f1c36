"""Is there room for what is to be written."""

import shutil
from pathlib import Path

from dlrm_app.errors import ConfigError
from dlrm_app.text import bytes_text


def refuse_if_too_large(
    rows: int, sample_bytes: int, sample_rows: int, folder: Path, suggestion: str
) -> None:
    """Raises ConfigError if ``folder`` has no room for ``rows``, of which ``sample_rows`` take ``sample_bytes``."""
    needed = rows * sample_bytes // sample_rows
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ConfigError(
            [
                f"rows={rows} needs about {bytes_text(needed)} at {folder}, which has {bytes_text(free)} free: "
                f"ask for fewer rows, {suggestion}"
            ]
        )
