"""A dashboard as a list of titled rows of panels, with the variables that all our dashboards have."""

from collections.abc import Sequence
from typing import NamedTuple

from grafana_foundation_sdk.builders.dashboard import Dashboard, DashboardLink, DatasourceVariable, QueryVariable, Row
from grafana_foundation_sdk.models import dashboard as models

from dashboards.panels import SOURCE, Panel


class Variable(NamedTuple):
    """A selector above the panels: its values, and whether several or all can be selected."""

    name: str
    values: str
    many: bool = False


class Section(NamedTuple):
    title: str
    panels: Sequence[Panel]


class Board(NamedTuple):
    uid: str
    title: str
    about: str
    sections: Sequence[Section]
    since: str = "now-6h"
    refresh: str = "30s"
    variables: Sequence[Variable] = ()


NODE_VARIABLE = Variable("node", "label_values(gpucommons_agent_info, node)", many=True)


def built(board: Board) -> models.Dashboard:
    made = (
        Dashboard(board.title)
        .uid(board.uid)
        .description(board.about)
        .tags(["gpucommons"])
        .readonly()
        .timezone("browser")
        .time(board.since, "now")
        .refresh(board.refresh)
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(
            DashboardLink("GPU dashboards")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags(["gpucommons"])
            .keep_time(True)
        )
        .with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in (NODE_VARIABLE, *board.variables):
        made = made.with_variable(_selector(variable))
    for section in board.sections:
        made = made.with_row(Row(section.title))
        for panel in section.panels:
            made = made.with_panel(panel)
    result = made.build()
    for number, item in enumerate(result.panels or [], 1):
        # Numbered here, so that an unchanged dashboard is an unchanged file.
        item.id_val = number
    return result


def _selector(variable: Variable) -> QueryVariable:
    selector = (
        QueryVariable(variable.name)
        .label(variable.name.capitalize())
        .query(variable.values)
        .datasource(SOURCE)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )
    if not variable.many:
        return selector
    all_values = models.VariableOption(selected=True, text="All", value="$__all")
    return selector.multi(True).include_all(True).current(all_values)
