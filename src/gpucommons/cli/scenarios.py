"""The scenario that --simulate names, or one line that says which there are."""

from gpucommons.cli.errors import CommandError
from gpucommons.simulation.scenario import Scenario


def scenario_named(name: str | None) -> Scenario | None:
    if name is None:
        return None
    # Not at the top: an agent that plays nothing need not know the plays.
    from gpucommons.simulation.scenarios import SCENARIOS

    if name not in SCENARIOS:
        raise CommandError(f"no scenario '{name}'; there are: {', '.join(SCENARIOS)}")
    return SCENARIOS[name]
