"""The few words in which a resource states the shape of its answer, as JSON Schema. Values only.

An object has exactly the fields that are named: a client may rely on each, and nothing else slips out.
"""

Schema = dict[str, object]

TEXT: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}


def record(**fields: Schema) -> Schema:
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def by_key(values: Schema, what: str) -> Schema:
    """An object whose keys are identities; `what` says which."""
    return {"type": "object", "description": f"by {what}", "additionalProperties": values}


def listed(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def one_of(*words: str) -> Schema:
    return {"type": "string", "enum": list(words)}


def or_null(schema: Schema) -> Schema:
    """Null where there is no reading: missing is never 0."""
    kind = schema.get("type")
    if isinstance(kind, str) and "enum" not in schema and kind != "object":
        return {**schema, "type": [kind, "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def described(schema: Schema, text: str) -> Schema:
    return {**schema, "description": text}
