from pathlib import Path


def write_days(output: Path) -> Path | None:
    return None
