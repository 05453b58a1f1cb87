"""The runtimes of the container tests: each is started once and emptied before every test."""

from collections.abc import Iterator

import pytest

from testbeds.dockerd import Dockerd, running_dockerd
from testbeds.podman import Podman, running_podman


@pytest.fixture(scope="session")
def dockerd_of_the_session() -> Iterator[Dockerd]:
    with running_dockerd() as daemon:
        yield daemon


@pytest.fixture
def dockerd(dockerd_of_the_session: Dockerd) -> Iterator[Dockerd]:
    yield dockerd_of_the_session
    dockerd_of_the_session.remove_all()


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    with running_podman() as daemon:
        yield daemon
