"""What the user sees at the end: a short table and the next command."""

import logging

from dlrm_app.dataset.manifest import Manifest
from dlrm_app.table import text_table
from dlrm_app.text import NONE, bytes_text, setting

logger = logging.getLogger(__name__)


def report(manifest: Manifest, seconds: float | None, *, went_on: bool = False) -> None:
    """Logs rows, positives, rejects and bytes of every split.

    ``seconds``: how long the run took, if it ran at all; ``went_on``: it had only to finish what another had begun.
    """
    table = [
        [
            name,
            f"{split.rows:,}",
            NONE if split.positives is None else f"{split.positives / max(split.rows, 1):.2%}",
            f"{split.rejects:,}",
            bytes_text(sum(shard.bytes for shard in split.shards)),
        ]
        for name, split in manifest.splits.items()
    ]
    lines = [text_table(["split", "rows", "positives", "rejects", "size"], table)]
    rows = sum(split.rows for split in manifest.splits.values())
    if seconds is not None and went_on:
        lines.append(f"{rows:,} rows; the rest of them took {seconds:.1f} s")
    elif seconds is not None:
        lines.append(f"{rows:,} rows in {seconds:.1f} s: {rows / seconds:,.0f} rows/s")
    if any(split.rejects for split in manifest.splits.values()):
        lines.append(f"rejected lines: {manifest.path}/rejects.jsonl")
    if manifest.best is not None:
        lines.append(
            f"best reachable AUC {manifest.best['auc']:.4f}, log loss {manifest.best['logloss']:.4f}"
        )
    lines.append(f"next: {next_command(manifest)}")
    logger.info("\n".join(lines))


def next_command(manifest: Manifest) -> str:
    """What to type on a dataset that is made: training; evaluation where no rows are to train on; a look at the rest."""
    path = setting("data.path", manifest.path)
    labelled = [name for name, split in manifest.splits.items() if split.positives is not None]
    if "train" in labelled:
        return f"dlrm-train {path} tables=dataset trainer.epochs=1"
    if labelled:
        return f"dlrm-evaluate checkpoint=RUN {path} split={labelled[0]}"
    return f"dlrm-check {path}"
