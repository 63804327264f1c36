"""Folders that appear at once on a disk, as exports do, and file by file in a store.

The object ``.sending`` in such a folder says that it is on its way; it is deleted once the mark, which comes last, is
there. With it and without the mark the sender was killed: then the files are the rest of nothing, and are deleted.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

SENDING = ".sending"
_MARK = "export.json"


def folders_on_their_way(folder: Path, names: Iterable[str], sent: Mapping[str, object]) -> set[str]:
    """The folders of the files ``names``, as beginnings of names, that are whole in ``folder`` and not in the store yet.

    ``sent``: the files that the store has.
    """
    above = {str(each) for name in names if name for each in PurePosixPath(name).parents}
    beginnings = {"" if each == "." else f"{each}/" for each in above}
    return {each for each in beginnings if f"{each}{_MARK}" not in sent and (folder / each / _MARK).is_file()}


def has_arrived(note: str, sent: Mapping[str, object]) -> bool:
    """True if the mark of the folder with the object ``note`` is among the files ``sent``."""
    return note.removesuffix(SENDING) + _MARK in sent


def notes_in(stored: Iterable[str]) -> list[str]:
    """Those of the names ``stored`` that are such objects; they are no files."""
    return [name for name in stored if name.rpartition("/")[2] == SENDING]


def cut_off(stored: Iterable[str], folder: Path) -> list[str]:
    """The names in folders whose sender was killed, and which are not whole in the local ``folder`` either."""
    names = {*stored}
    beginnings = tuple(
        note.removesuffix(SENDING)
        for note in notes_in(names)
        if not has_arrived(note, dict.fromkeys(names))
        and not (folder / note.removesuffix(SENDING) / _MARK).is_file()
    )
    return [name for name in names if name.startswith(beginnings)]
