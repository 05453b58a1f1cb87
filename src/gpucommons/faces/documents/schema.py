"""JSON Schema for the API's documents, and `Record`: one declaration that gives an object's schema and its content.

An object has exactly the fields that are declared: a client can rely on each of them, and no other field leaks.
"""

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from gpucommons.faces.documents.values import Json

T = TypeVar("T")
Schema = dict[str, object]
Field = tuple[Schema, Callable[[T], Json]]
"""The schema of one field, and the function that reads the field from a value."""
OptionalField = tuple[Schema, Callable[[T], "Json | Absent"]]

TEXT: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}


def record(**fields: Schema) -> Schema:
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def by_key(values: Schema, what: str) -> Schema:
    """An object whose keys are identities of the kind `what`."""
    return {"type": "object", "description": f"by {what}", "additionalProperties": values}


def list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def one_of(*words: str) -> Schema:
    return {"type": "string", "enum": list(words)}


def or_null(schema: Schema) -> Schema:
    """Null means no reading: missing is never 0."""
    kind = schema.get("type")
    if isinstance(kind, str) and "enum" not in schema and kind != "object":
        return {**schema, "type": [kind, "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def describe(schema: Schema, text: str) -> Schema:
    return {**schema, "description": text}


TEXT_OR_NULL, INTEGER_OR_NULL, NUMBER_OR_NULL = or_null(TEXT), or_null(INTEGER), or_null(NUMBER)


class Absent:
    """An optional field that an object does not have."""


ABSENT = Absent()


class Record(Generic[T]):
    """An object of the API that is made from a value of type T: `Record[Gpu](index=(INTEGER, lambda gpu: ...))`.

    A field of `optional` is left out of an object where it reads ABSENT.
    """

    def __init__(self, optional: Mapping[str, OptionalField[T]] | None = None, /, **fields: Field[T]) -> None:
        self.optional = optional or {}
        self.fields = fields
        schemas = {name: schema for name, (schema, _) in (*fields.items(), *self.optional.items())}
        self.schema: Schema = {**record(**schemas), "required": list(fields)}
        self._readers = tuple((name, read) for name, (_, read) in fields.items())

    def build(self, value: T) -> dict[str, Json]:
        built = {name: read(value) for name, read in self._readers}
        for name, (_, read) in self.optional.items():
            content = read(value)
            if not isinstance(content, Absent):
                built[name] = content
        return built

    def build_or_null(self, value: T | None) -> Json:
        return None if value is None else self.build(value)
