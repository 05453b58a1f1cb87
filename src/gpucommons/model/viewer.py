"""A viewer: the person or program that reads the page or the API. rules/privacy.py decides what it sees."""

from typing import NamedTuple


class Viewer(NamedTuple):
    """Without `sees_all` and `sees_names`, only the rows of `uid` and `user` are visible, and none where they are None.

    `sees_names`: a local user. Metrics name owners, so a viewer that sees no names gets metrics only with
    `metrics_open`.
    """

    sees_all: bool = True
    uid: int | None = None
    user: str | None = None
    metrics_open: bool = False
    sees_names: bool = False

    @property
    def sees_metrics(self) -> bool:
        return self.sees_accounts or self.metrics_open

    @property
    def sees_accounts(self) -> bool:
        """Whether it sees the GPU use of every owner, now and in the past."""
        return self.sees_all or self.sees_names


SEES_ALL = Viewer()
