"""Small files are joined to units: which ones, and what a bundle yields of its files."""

from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import given

from dlrm_app.logs.sources.source import InputFile
from dlrm_app.logs.sources.units import FileExtent, UnitExtent, UnitName, bundle_files

MOST = 100


def files_of(sizes: list[int], kinds: list[str]) -> list[InputFile]:
    return [
        InputFile(index, f"{index}", kind, size, 0, "text")
        for index, (size, kind) in enumerate(zip(sizes, kinds, strict=True))
    ]


@given(
    st.lists(st.tuples(st.integers(0, 130), st.sampled_from("ab")), max_size=30), st.sets(st.integers(0, 29))
)
def test_bundles_hold_all_files_in_order_up_to_a_unit(
    drawn: list[tuple[int, str]], left_out: set[int]
) -> None:
    files = files_of([size for size, _ in drawn], [kind for _, kind in drawn])
    files = [file for file in files if file.index not in left_out]
    bundles = bundle_files(files, lambda file: file.bytes, lambda file: file.split, MOST)
    assert [file for bundle in bundles for file in bundle] == files
    for bundle in bundles:
        assert len(bundle) == 1 or sum(file.bytes for file in bundle) <= MOST
        assert len({file.split for file in bundle}) == 1
        assert [file.index for file in bundle] == list(range(bundle[0].index, bundle[-1].index + 1))
    for one, other in pairwise(bundles):
        follows, is_alike = one[-1].index + 1 == other[0].index, one[0].split == other[0].split
        assert not (follows and is_alike) or sum(f.bytes for f in one) + other[0].bytes > MOST


def test_names_of_units_tell_their_sources_and_sort_in_order() -> None:
    names = [UnitName(2, 0, 2), UnitName(2, 11, 2), UnitName(3, 0, 40), UnitName(41, 0, 41)]
    texts = [str(name) for name in names]
    assert texts == sorted(texts)
    assert list(map(UnitName.parse, texts)) == names
    assert [len(name.sources) for name in names] == [1, 1, 38, 1]
    assert UnitName.parse("0000012") is None  # a shard to gather


def test_a_line_of_a_bundle_has_its_place_in_a_file() -> None:
    files = [FileExtent(9, 9, 1, lines) for lines in (2, 0, 3)]
    extent = UnitExtent.of_bundle(5, files, is_all=False)
    assert [extent.place_of(line) for line in range(5)] == [(5, 0), (5, 1), (7, 0), (7, 1), (7, 2)]
    assert (extent.size, extent.file_bytes, extent.name) == (27, 27, str(UnitName(5, 0, 7)))
