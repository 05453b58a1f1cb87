"""The uid and the namespaced pids of /proc/PID/status, with any other lines around them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attribution.procfs_tree import status_text
from gpucommons.owners.process_identity import parse_status


def test_a_process_in_a_container() -> None:
    assert parse_status(status_text("python", 1000, (4711, 12, 1))) == (1000, (4711, 12, 1))


def test_a_kernel_that_reports_no_namespaced_pids() -> None:
    assert parse_status("Name:\tx\nUid:\t5\t6\t7\t8\n") == (5, ())


@pytest.mark.parametrize(
    "text", ["", "Uid:", "Uid:\tx", "Uid:\t" + "9" * 11, "xUid:\t5", "NSpid:\nUid:\t-1", "Uid:\t١"]
)
def test_missing_lines_are_missing_values(text: str) -> None:
    assert parse_status(text) == (None, ())


@given(st.text())
def test_any_text(text: str) -> None:
    parse_status(text)


@given(st.text().map(lambda s: s.replace("\\", "\\\\").replace("\n", "\\n")))
def test_a_name_cannot_forge_a_line(name: str) -> None:
    assert parse_status(status_text(name, 1000, (7, 1))) == (1000, (7, 1))
