"""The result of an export."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlrm_app.inference.delta import describe
from dlrm_app.inference.record import DeltaRecord, ExportRecord, Verification
from dlrm_app.inference.verification import TIMED_ROWS
from dlrm_app.result import Paragraph, Result
from dlrm_app.table import Columns, Rows
from dlrm_app.text import bytes_text


@dataclass(frozen=True)
class Export(Result):
    """A finished export.

    ``path``: its folder.
    ``delta``: if only the difference from another export was kept.
    ``verified_on``: the dataset and split that it was verified on; None if the export was rebuilt from a delta.
    """

    path: Path
    record: ExportRecord
    delta: DeltaRecord | None = None
    verified_on: tuple[str, str] | None = None

    def paragraphs(self) -> Iterable[Paragraph]:
        record = self.record
        if self.verified_on is None:
            yield (
                f"{self.path}: {len(record.files)} files of {record.checkpoint}, step {record.step}, "
                "verified by their checksums"
            )
            return
        before, after = record.trained_bytes, sum(table.bytes for table in record.tables)
        tables = f"{len(record.tables)} tables of {bytes_text(before)} are {bytes_text(after)} now"
        yield f"{record.checkpoint}: {tables}"
        if record.proofs:
            first = record.proofs[0]
            yield f"verified on {first.rows:,} rows of {first.split}, AUC {first.auc_trained:.6f} as trained"
            yield proofs_table(record.proofs)
        if self.delta is not None:
            yield describe(self.delta)


def proofs_table(proofs: Sequence[Verification]) -> tuple[Columns, Rows]:
    headings = ["", "size", "AUC", "AUC lost", "95% interval", "p", "max difference", "mean"]
    headings += [f"{rows} rows" for rows in TIMED_ROWS]
    lines = [
        [
            found.file,
            bytes_text(found.bytes),
            f"{found.auc:.6f}",
            f"{found.auc_loss:+.6f}",
            f"{found.auc_loss_low:+.6f} to {found.auc_loss_high:+.6f}",
            f"{found.p_value:.3g}",
            f"{found.max_difference:.2g}",
            f"{found.mean_difference:.2g}",
            *(
                f"{found.milliseconds[str(rows)]:.3g} ms{', busy' * (str(rows) in found.busy)}"
                for rows in TIMED_ROWS
            ),
        ]
        for found in proofs
    ]
    return headings, lines
