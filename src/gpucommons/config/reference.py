"""Generate docs/configuration.md from the settings: every key, its variable, default and meaning. Pure."""

from collections.abc import Iterator
from itertools import groupby

from gpucommons.config.load import as_toml, free_sections, keys, keys_of
from gpucommons.config.scheduler import MAX_RUNTIME_VARIABLES


def configuration_page() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Configuration"
    yield ""
    yield "Generated from the settings by `make docs`. Settings come from one TOML file (`--config FILE`), the"
    yield "environment and flags, in rising precedence. `gpucommons check-config FILE` checks a file and prints"
    yield "what differs from the defaults, with `--all` every value in force, each with its origin. An unknown key or a"
    yield "wrong value is an error that names the key."
    for section, members in groupby(keys(), key=lambda key: key.section):
        yield ""
        yield f"## [{section}]"
        yield ""
        yield "| key | variable | default | meaning |"
        yield "|---|---|---|---|"
        for key in members:
            variables = " ".join(f"`{name}`" for name in (key.variable, *key.guards["aliases"]))
            choices = f" ({', '.join(key.guards['choices'])})" if key.guards["choices"] else ""
            default = as_toml(key.default).replace("|", r"\|")
            yield f"| `{key.name}` | {variables} | `{default}` | {key.guards['help']}{choices} |"
        if section == "scheduler":
            yield ""
            variables = " and ".join(f"`{name}`" for name in MAX_RUNTIME_VARIABLES)
            yield f"{variables} are logged and have no effect, as in nvshare and XPUShare."
    for section, row_type in free_sections():
        yield ""
        yield f"## [{section}]"
        yield ""
        yield " ".join((row_type.__doc__ or "").split())
        yield ""
        yield "| key | meaning |"
        yield "|---|---|"
        for key in keys_of(section, row_type):
            yield f"| `{key.name}` | {key.guards['help']} |"
