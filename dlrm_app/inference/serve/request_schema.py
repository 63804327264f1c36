"""A request as JSON schema: the columns by name, with what they hold."""

from dlrm_app.preprocess.read.spec import Column, Spec

Schema = dict[str, object]
_SCALARS = {
    "integer": ["integer", "string", "null"],
    "float": ["number", "string", "null"],
    "hex": ["string", "null"],
    "string": ["string", "integer", "null"],
}


def request_schema(spec: Spec) -> Schema:
    """The schema of a body with rows of ``spec``."""
    read = [column for column in spec.columns if column.role in ("dense", "sparse")]
    row: Schema = {"type": "object", "properties": {column.name: _column(column) for column in read}}
    rows: Schema = {"type": "array", "minItems": 1, "items": row}
    return {
        "type": "object",
        "required": ["rows"],
        "additionalProperties": False,
        "properties": {"rows": rows},
    }


def _column(column: Column) -> Schema:
    scalar: Schema = {"type": _SCALARS[column.kind or ""]}
    return scalar if column.separator is None else {"type": ["array", "null"], "items": scalar}
