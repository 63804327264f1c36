"""A run of MLPerf's DLRM-DCNv2 beside what others reached on the way, for runs that write MLPerf's log."""

from collections.abc import Mapping

from dlrm_app.reports.run.run_record import RunRecord
from dlrm_app.table import Cell, Rows, html_table
from dlrm_app.text import fixed

PUBLISHED = {0.05: 0.7898, 0.10: 0.7942, 0.20: 0.7976, 0.50: 0.8014, 0.70: 0.80275}
"""Share of the epoch → AUC on val: MLPerf Training, 8×B200, batch 55,296."""
EPOCHS_TO_TARGET = {
    32_768: 0.707,
    55_296: 0.762,
    65_536: 0.791,
    102_400: 0.891,
    135_168: 0.928,
    160_000: 0.958,
}
"""Batch size → mean epochs to AUC 0.80275: the reference convergence points of MLPerf Training 6.0."""


def convergence_section(record: RunRecord) -> str:
    """AUC by the share of the epoch, the published one beside it; nothing for runs without MLPerf's log."""
    if not record.config.get("logging", {}).get("mllog"):
        return ""
    trainer = record.config["trainer"]
    rows_of_train = record.dataset["splits"]["train"]["rows"]
    epochs = {
        each.step * trainer["global_batch_size"] / rows_of_train: each.metrics["auc"]
        for each in record.evals
        if each.split == "val"
    }
    rows: Rows = [
        [f"{share:.0%}", _auc(_at(share, epochs)), _auc(published)] for share, published in PUBLISHED.items()
    ]
    batch_size = trainer["global_batch_size"]
    nearest_batch = min(EPOCHS_TO_TARGET, key=lambda size: abs(size - batch_size))
    note = (
        f"MLPerf's reference takes {EPOCHS_TO_TARGET[nearest_batch]} epochs to 0.80275 at batch {nearest_batch:,} "
        f"(this run: {batch_size:,}). The published column is of 8×B200 at batch 55,296, on Criteo 1TB."
    )
    return f"<h2>Convergence</h2>{html_table(['of the epoch', 'AUC on val', 'published'], rows)}<p>{note}</p>"


def _at(share: float, epochs: Mapping[float, float]) -> float | None:
    """The AUC after that share of the first epoch, give or take a hundredth of it."""
    nearest = min(epochs, key=lambda epoch: abs(epoch - share), default=share + 1)
    return epochs[nearest] if abs(nearest - share) < 0.01 else None


def _auc(value: float | None) -> Cell:
    return Cell(fixed(value, 5), value)
