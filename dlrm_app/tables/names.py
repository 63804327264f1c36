"""Which parameter is which table's."""


def table_of(parameter: str) -> str | None:
    """The table whose weights ``parameter`` (its dotted name in a model) is; None for the dense part's.

    torchrec names them ``….embedding_bags.<table>.weight``, sharded or not.
    """
    parts = parameter.split(".")
    return parts[-2] if "embedding_bags" in parts else None
