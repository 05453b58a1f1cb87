"""Where agents serve their control socket, and where commands look for it."""

from pathlib import Path

from gpucommons.config.runtime_directory import control_sockets, own_control_socket

NODE = Path("/run/nvshare/control.sock")
ROOT = Path("/run/gpucommons/control.sock")


def test_a_user_means_the_own_agent_and_root_that_of_the_node() -> None:
    assert control_sockets(NODE, {}, 0)[:2] == (NODE, ROOT)
    own = Path("/run/user/1000/gpucommons/control.sock")
    assert own_control_socket({}, 1000) == own
    assert control_sockets(NODE, {}, 1000) == (own, NODE, ROOT)
    given = {"XDG_RUNTIME_DIR": "/tmp/mine"}
    assert (
        control_sockets(NODE, given, 1000)[0]
        == own_control_socket(given, 1000)
        == Path("/tmp/mine/gpucommons/control.sock")
    )


def test_a_given_directory_is_the_only_one_besides_that_of_the_clients() -> None:
    given = {"RUNTIME_DIRECTORY": "/run/a:/run/b"}
    assert control_sockets(NODE, given, 0) == (NODE, Path("/run/a/control.sock"))
    assert control_sockets(NODE, given, 1000) == (Path("/run/a/control.sock"), NODE)
