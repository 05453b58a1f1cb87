"""Documents of the API for the commands that read: from the running agent, else from one sample of their own.

The order: the agent of --connect; the agent's Unix socket; its TCP listener. Only where no agent answers does the
command read the machine itself, and says so in one line on stderr.
"""

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from gpucommons.base.address import Address, UnixAddress, parse_address
from gpucommons.base.files import explain_refusal
from gpucommons.base.text import Printable, printable_lines
from gpucommons.cli.agent_client import FIRST_SAMPLE_S, AgentAddress, BadRequest, Document, NoAnswer, get, named_address
from gpucommons.cli.command_line import AgentUnreachable, CommandError, say
from gpucommons.cli.options import CaFile, ConfigFile, Connect, PasswordFile, Procfs, Simulate, load_settings
from gpucommons.config.runtime_directory import AUTO, DEFAULT_LISTEN, known_sockets

if TYPE_CHECKING:
    from gpucommons.model.snapshot import Snapshot

_EVERY_INTERFACE = ("", "0.0.0.0", "::")
_VARIABLES = ("GPUCOMMONS_WEB_LISTEN", "GPUCOMMONS_WEB_SOCKET")


@dataclass(slots=True)
class Reader:
    """The options that the reading commands share. `agent` is where the documents came from; None for an own sample.

    `within_s` is how long to wait for the first sample of an agent that has just started.
    """

    connect: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    config: Path | None = None
    simulate: str | None = None
    procfs: str | None = None
    within_s: float = FIRST_SAMPLE_S
    agent: AgentAddress | None = field(default=None, init=False)
    _why: list[str] = field(default_factory=list, init=False)
    _sample: "Snapshot | None" = field(default=None, init=False)
    _said: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        given = [name for name, value in (("--simulate", self.simulate), ("--path.procfs", self.procfs)) if value]
        if self.connect is not None and given:
            raise CommandError(f"--connect and {given[0]} exclude each other: use one of them")
        if self.connect is None and (self.password_file or self.ca_file):
            raise CommandError("--password-file and --ca-file belong to --connect URL")

    def get(self, name: str, parameters: Mapping[str, str | None] | None = None) -> Document:
        """The document of /api/v1/NAME. Parameters that are None are left out."""
        document = self.ask(name, parameters)
        return self._of_sample(name, _drop_missing(parameters)) if document is None else document

    def ask(self, name: str, parameters: Mapping[str, str | None] | None = None) -> Document | None:
        """As `get`, but None where no agent answers. Raises AgentUnreachable if the user named the agent."""
        if self._sample is not None:
            return None
        for address in self._candidates():
            try:
                document = get(address, name, _drop_missing(parameters), self.within_s)
            except BadRequest as error:
                raise CommandError(str(error)) from error
            except NoAnswer as error:
                if self.connect is not None:
                    raise AgentUnreachable(f"no answer of the agent: {error}") from error
                if self.agent is not None:
                    raise CommandError(f"the agent stopped answering: {error}") from error
                self._why.append(str(error))
                continue
            self.agent = address
            return document
        return None

    def find_agent(self) -> AgentAddress | None:
        """The agent that answers; None where none does."""
        self.ask("")
        return self.agent

    @property
    def asks(self) -> bool:
        """Whether an agent is asked at all."""
        return self.simulate is None and self.procfs is None

    @property
    def why(self) -> str:
        """Why there is no agent, after `ask` returned None."""
        return f"no agent answers ({'; '.join(self._why) or 'the settings name no address'})"

    def say_alone(self, what: str) -> None:
        """Say once on stderr that there is no agent and what this command does instead."""
        if self.asks and not self._said:
            self._said = True
            say(f"{self.why}: {what}")

    def _candidates(self) -> list[AgentAddress]:
        if self.agent is not None:
            return [self.agent]
        if self.connect is not None:
            return [named_address(self.connect, self.password_file, self.ca_file)]
        if not self.asks:
            return []
        listen, api_socket = self._settings()
        urls = [*known_sockets(api_socket), *local_urls(listen)]
        return [AgentAddress(url, only_agents=True) for url in dict.fromkeys(urls)]

    def _settings(self) -> tuple[str, str]:
        """`web.listen` and `web.socket`. Loading all settings takes time: only for a file, or a variable of these."""
        if self.config is None and not any(name in os.environ for name in _VARIABLES):
            return DEFAULT_LISTEN, AUTO
        web = load_settings(self.config, {}).settings.web
        return web.listen, web.socket

    def _of_sample(self, name: str, parameters: Mapping[str, str]) -> Document:
        # Imported here: the agent and its sources take most of a second to import.
        from gpucommons.cli.one_sample import api_document, take_sample

        if self._sample is None:
            self.say_alone("this command reads the machine itself, which takes about 2 s")
            _, self._sample = take_sample(self.config, self.simulate, self.procfs)
        return api_document(self._sample, name, parameters)


_AGENT_OPTIONS: Final = {"connect": Connect, "password_file": PasswordFile, "ca_file": CaFile, "config": ConfigFile}
_SAMPLE_OPTIONS: Final = {"simulate": Simulate, "procfs": Procfs}


def reading(*without_agent: Literal["simulate", "procfs"]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declare a command that reads: in place of its parameter `reader` it has the options of a Reader.

    Typer makes an option of each parameter, and knows no bundle of them. `without_agent` are the options for what the
    command reads itself.
    """
    options: dict[str, Any] = {**_AGENT_OPTIONS, **{name: _SAMPLE_OPTIONS[name] for name in without_agent}}

    def declare(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**values: Any) -> None:
            command(reader=Reader(**{name: values.pop(name) for name in options}), **values)

        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            if parameter.name == "reader":
                kind = inspect.Parameter.KEYWORD_ONLY
                parameters += [
                    inspect.Parameter(name, kind, default=None, annotation=option) for name, option in options.items()
                ]
            else:
                parameters.append(parameter)
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return declare


def local_urls(listen: str) -> list[str]:
    """The URL of a main listener of this machine; none where it is off or its port is not fixed."""
    if not listen:
        return []
    address = parse_address(listen)
    if isinstance(address, UnixAddress):
        return [str(address)]
    host = "127.0.0.1" if address.host in _EVERY_INTERFACE else address.host
    return [f"http://{Address(host, address.port)}"] if address.port else []


def hidden_note(document: Document, section: str) -> Printable:
    """A line for the end of a text where the agent hides rows of other owners; empty where it does not."""
    hidden = document["hidden"]
    shown = hidden and section in hidden["sections"]
    return printable_lines([f"rows of other owners are {hidden['sentence']}"] if shown else [])


def _drop_missing(parameters: Mapping[str, str | None] | None) -> dict[str, str]:
    return {name: value for name, value in (parameters or {}).items() if value is not None}


def readable_file(reader: Reader, own: Path, of_node: Path, what: str) -> Path:
    """The file of this user's agent, else that of the node's agent. Raises CommandError."""
    problems = []
    for path in dict.fromkeys((own, of_node)):
        reason = explain_refusal(path)
        if reason is None and path.exists():
            return path
        problems.append(reason or f"{path} does not exist")
    if not reader.asks or os.geteuid() == 0:
        raise CommandError(f"{own}: no {what}; 'gpucommons up' writes it")
    raise CommandError(
        f"{reader.why}, and without one no {what} can be read: {'; '.join(problems)}; "
        "start the agent's service, or ask the administrator to"
    )
