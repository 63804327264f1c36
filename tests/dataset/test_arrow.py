"""Arrow arrays beside pyarrow's own conversions, and what these cost: pandas."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dlrm_app.dataset.arrow import array_of, numbers_of
from tests.preprocessing.clicks import make_clicks

KINDS = [np.uint8, np.int32, np.int64, np.uint64, np.float32, np.float64]


@pytest.mark.parametrize("kind", KINDS)
def test_values_go_there_and_back(kind: type) -> None:
    values = np.arange(20).astype(kind)
    assert array_of(values).equals(pa.array(values))
    assert array_of(values[::3]).equals(pa.array(values[::3]))
    array = pa.array(values)
    for part in (array, array[3:17], array[5:5], array[:0], pa.array([], array.type)):
        assert numbers_of(part).dtype == kind
        assert np.array_equal(numbers_of(part), part.to_numpy())


def test_chunks_of_a_column_are_joined_in_order() -> None:
    pieces = pa.chunked_array([[1, 2], [], [3]], pa.int32())
    assert numbers_of(pieces).tolist() == [1, 2, 3]
    assert numbers_of(pa.chunked_array([[4, 5]], pa.int32()).slice(1)).tolist() == [5]
    assert numbers_of(pa.chunked_array([], pa.int32())).tolist() == []
    lists = pa.array([[1], [2, 3], []], pa.list_(pa.int32()))[1:]
    assert numbers_of(lists.offsets).tolist() == lists.offsets.to_pylist() == [1, 3, 3]


def test_nulls_are_refused() -> None:
    with pytest.raises(ValueError, match=r"2 values are missing"):
        numbers_of(pa.array([1, None, None]))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("pandas") is None, reason="pandas is not installed: nothing could import it")
def test_neither_reading_nor_writing_a_dataset_imports_pandas(tmp_path: Path) -> None:
    (tmp_path / "clicks.tsv").write_bytes(make_clicks(300))
    code = f"""
import sys
from dlrm_app.loader.reader import SplitReader
from tests.preprocessing.running import Path, run
made = run(Path("{tmp_path}/out"), "input.train={tmp_path}/clicks.tsv")
SplitReader(made, "train", [column.name for column in made.sparse]).decode(0)
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
