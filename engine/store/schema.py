"""Arrow schemas rendered from `schemas/records/*.json`: the JSON schema is the only place where a column is declared.

`string`, `integer`, `number`, `boolean` map to utf8, int64, float64, bool; arrays to lists; objects with `properties`
to structs; objects with only `additionalProperties` to string-keyed maps. `x-arrow` names a narrower type.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

SCHEMAS = Path(__file__).resolve().parents[2] / "schemas" / "records"

_SCALARS = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_NAMED = {
    "int32": pa.int32(),
    "float32": pa.float32(),
    "binary": pa.binary(),
    "bool": pa.bool_(),
    "large_string": pa.large_string(),
}


def _type(declared: dict[str, Any]) -> pa.DataType:
    if "x-arrow" in declared:
        return _NAMED[declared["x-arrow"]]
    kinds = declared["type"] if isinstance(declared["type"], list) else [declared["type"]]
    kind = next(name for name in kinds if name != "null")
    if kind == "array":
        return pa.list_(_type(declared["items"]))
    if kind == "object" and "properties" in declared:
        return pa.struct(_fields(declared))
    if kind == "object":
        return pa.map_(pa.string(), _type(declared["additionalProperties"]))
    return _SCALARS[kind]


def _fields(declared: dict[str, Any]) -> list[pa.Field]:
    return [
        pa.field(name, _type(value), metadata={"description": value["description"]})
        for name, value in declared["properties"].items()
    ]


@cache
def record_schema(name: str) -> pa.Schema:
    """The Arrow schema of `schemas/records/<name>.json`."""
    declared = json.loads((SCHEMAS / f"{name}.json").read_text())
    return pa.schema(_fields(declared), metadata={"record": name})
