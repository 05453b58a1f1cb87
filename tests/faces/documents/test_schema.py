"""A Record: the schema and the object come from one declaration."""

from typing import NamedTuple

from jsonschema import Draft202012Validator

from gpucommons.faces.documents.schema import INTEGER, TEXT_OR_NULL, Record


class Card(NamedTuple):
    number: int
    name: str | None


CARD = Record[Card](number=(INTEGER, lambda card: card.number), name=(TEXT_OR_NULL, lambda card: card.name))


def test_the_object_has_exactly_the_fields_of_the_schema() -> None:
    assert CARD.build(Card(1, None)) == {"number": 1, "name": None}
    assert CARD.build_or_null(None) is None
    valid = Draft202012Validator(CARD.schema).is_valid
    assert valid(CARD.build(Card(1, "a")))
    assert not valid({"number": 1})
    assert not valid({"number": None, "name": "a"})
    assert not valid({"number": 1, "name": "a", "more": 1})
