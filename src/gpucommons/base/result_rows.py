"""The rows of an answer of Prometheus' query API, one by one as its bytes come. Pure.

A document that is read as a whole takes up to 25 times its length. Here an answer of any length takes what its reader
keeps of it, and one row that is not complete yet.
"""

import codecs
import json
import re
from typing import Literal

_ROWS_BEGIN = re.compile(r'"result"\s*:\s*\[')
_ROW_BEGINS = re.compile(r"[\s,]*")
_decode_row = json.JSONDecoder().raw_decode


class BrokenRows(ValueError):
    """The answer has no list of rows, or a row that is not JSON or too long."""


class ResultRows:
    """`feed` the bytes of the answer, then `end`. No row may have more than `longest_row` characters."""

    def __init__(self, longest_row: int) -> None:
        self._longest_row = longest_row
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._state: Literal["head", "rows", "tail"] = "head"

    def feed(self, data: bytes) -> list[object]:
        """The rows that are complete now. Raises BrokenRows."""
        if self._state == "tail":
            return []
        self._text += self._decoder.decode(data)
        if self._state == "head":
            begin = _ROWS_BEGIN.search(self._text)
            if begin is not None:
                self._text, self._state = self._text[begin.end() :], "rows"
        rows = self._complete_rows() if self._state == "rows" else []
        if len(self._text) > self._longest_row:
            raise BrokenRows("a row that does not end")
        return rows

    def end(self) -> None:
        """Raises BrokenRows if the list has not ended."""
        if self._state != "tail":
            raise BrokenRows("no list of rows")

    def _complete_rows(self) -> list[object]:
        text, position = self._text, 0
        rows: list[object] = []
        while True:
            # A comma between two rows, as all servers write it, or with spaces.
            if text.startswith(",{", position):
                position += 1
            elif not text.startswith("{", position):
                position = _row_begins(text, position)
            if text.startswith("]", position):
                self._text, self._state = "", "tail"
                return rows
            try:
                row, end = _decode_row(text, position)
            except (ValueError, RecursionError):
                # Not complete yet. A broken row is never complete: then the limit of a row ends it.
                self._text = text[position:]
                return rows
            # A number at the end of what is there may go on.
            if end == len(text):
                self._text = text[position:]
                return rows
            position = end
            rows.append(row)


def _row_begins(text: str, position: int) -> int:
    match = _ROW_BEGINS.match(text, position)
    return position if match is None else match.end()
