"""Where the agent serves its API socket, and where the commands look for it."""

from pathlib import Path

import pytest

from gpucommons.config.load import load
from gpucommons.config.option import ConfigError
from gpucommons.config.runtime_directory import known_sockets, served_socket

SYSTEM = "unix:/run/gpucommons/api.sock"
SERVICE = {"RUNTIME_DIRECTORY": "/run/gpucommons:/run/nvshare"}


def test_the_agent_serves_one_place(tmp_path: Path) -> None:
    user = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert served_socket("auto", user, uid=0) == SYSTEM
    assert served_socket("auto", user, uid=1000) == f"unix:{tmp_path}/gpucommons/api.sock"
    absent = {"XDG_RUNTIME_DIR": str(tmp_path / "absent")}
    assert served_socket("auto", absent, uid=1000) == "", "a user without a runtime directory has no place for it"
    assert served_socket("auto", SERVICE, uid=61_234) == SYSTEM
    assert served_socket("unix:/x/y", user, uid=0) == "unix:/x/y"
    assert served_socket("", user, uid=0) == ""


def test_the_commands_look_in_both_places() -> None:
    own = "unix:/run/user/1000/gpucommons/api.sock"
    user = {"XDG_RUNTIME_DIR": "/run/user/1000"}
    assert known_sockets("auto", user) == [SYSTEM, own]
    assert known_sockets("auto", {}, uid=1000) == [SYSTEM, own]
    assert known_sockets("auto", {"RUNTIME_DIRECTORY": "/t", **user}) == ["unix:/t/api.sock"]
    assert known_sockets("unix:/x/y", user) == ["unix:/x/y"]
    assert known_sockets("", user) == []


@pytest.mark.parametrize("directory", ["/" + "x" * 100, "/a\nb"])
def test_a_directory_that_cannot_hold_a_socket_is_left_out(directory: str) -> None:
    environment = {"XDG_RUNTIME_DIR": directory}
    assert served_socket("auto", environment, uid=1000) == ""
    assert known_sockets("auto", environment) == [SYSTEM]


def test_the_setting() -> None:
    assert load(None, {}, {}).settings.web.socket == "auto"
    assert load(None, {"GPUCOMMONS_WEB_SOCKET": ""}, {}).settings.web.socket == ""
    with pytest.raises(ConfigError, match="not an absolute path after unix:"):
        load(None, {"GPUCOMMONS_WEB_SOCKET": "automatic"}, {})
