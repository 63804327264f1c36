"""encoding/ of an export: a dataset folder without rows, enough to encode raw rows as those of training were."""

import shutil
from dataclasses import replace
from pathlib import Path

from dlrm_app.dataset.manifest import Manifest, write_manifest
from dlrm_app.errors import DataError

ENCODING = "encoding"


def write_encoding(folder: Path, manifest: Manifest) -> None:
    """Writes FOLDER/encoding: the manifest's columns and file format, and the files that encoding takes. Raises DataError."""
    target = folder / ENCODING
    target.mkdir()
    for file in manifest.encoding_files:
        source = manifest.folder / file
        if not source.is_file():
            raise DataError(
                f"{source} is missing, without which raw values of {source.stem} cannot be encoded: "
                f"copy the dataset folder again, {source.parent.name}/ included"
            )
        path = target / file
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, path)
    # the inputs of the dataset are nobody's business where the model is served
    config = {"dataset": manifest.config["dataset"]} if "dataset" in manifest.config else {}
    write_manifest(target, replace(manifest, splits={}, sources=[], best=None, config=config))
