"""The parts of the agent when a scenario is played: its sources, and the real attribution over them."""

from gpucommons.agent.owners import owner_rules
from gpucommons.agent.parts import Parts
from gpucommons.config.settings import Settings
from gpucommons.sampling.attributed import attributed
from gpucommons.simulation.scenario import Scenario


def scenario_parts(settings: Settings, scenario: Scenario) -> Parts:
    sources = scenario.sources(settings.sampling.interval_s)
    if scenario.world is None:
        return Parts(sources)
    return Parts(*attributed(sources, scenario.world, owner_rules(settings.owners)))
