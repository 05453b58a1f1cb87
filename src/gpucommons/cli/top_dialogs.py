"""The dialogs of `gpucommons top`: a page of text, and a question."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from gpucommons.base.text import Printable, printable
from gpucommons.cli.output import checked


class Page(ModalScreen[None]):
    """Text that scrolls; Escape, Enter, q and ? close it."""

    CSS = """
    Page { align: center middle; }
    Page > VerticalScroll { width: 90%; height: auto; max-height: 90%; border: round $primary; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q,question_mark", "close", "Close")]

    def __init__(self, text: Printable) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(checked(self._text), id="page", markup=False)

    def action_close(self) -> None:
        self.dismiss()


class Confirm(ModalScreen[bool]):
    """Only `y` agrees."""

    CSS = """
    Confirm { align: center middle; }
    Confirm > Static { width: 80%; height: auto; border: heavy $error; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,enter,q", "answer(False)", "No"),
    ]

    def __init__(self, question: Printable) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        yield Static(printable(f"{self._question}  y: yes, n: no"), id="question", markup=False)

    def action_answer(self, agreed: bool) -> None:
        self.dismiss(agreed)
