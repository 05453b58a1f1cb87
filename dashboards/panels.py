"""The kinds of panel that the dashboards use, each with our defaults."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from grafana_foundation_sdk.builders import bargauge, common, dashboard, heatmap, piechart, stat, table, timeseries
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models import piechart as piechart_models
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    GraphDrawStyle,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

Panel = Builder[models.Panel]

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
FULL, HALF, THIRD, QUARTER, SIXTH = 24, 12, 8, 6, 4
TALL, LOW = 8, 4


class Query(NamedTuple):
    """A PromQL expression and the legend of its series."""

    expr: str
    legend: str = ""


class Steps(NamedTuple):
    """The values from which a panel shows a warning and a critical state."""

    warning: float
    critical: float


def _target(query: Query, number: int, *, instant: bool, as_table: bool = False) -> Dataquery:
    target = Dataquery().expr(query.expr).ref_id(chr(ord("A") + number)).datasource(SOURCE)
    target = target.instant() if instant else target.range()
    if query.legend:
        target = target.legend_format(query.legend)
    return target.format(PromQueryFormat.TABLE) if as_table else target


def _thresholds(steps: Steps | None) -> dashboard.ThresholdsConfig:
    colours = [models.Threshold(value=None, color="green")]
    if steps is not None:
        colours.append(models.Threshold(value=steps.warning, color="orange"))
        colours.append(models.Threshold(value=steps.critical, color="red"))
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(colours)


def number(
    title: str, query: str, unit: str, about: str, *, steps: Steps | None = None, decimals: int = 0, width: int = SIXTH
) -> Panel:
    """One value with its history as a background line."""
    return (
        stat.Panel()
        .title(title)
        .description(about)
        .datasource(SOURCE)
        .unit(unit)
        .decimals(decimals)
        .thresholds(_thresholds(steps))
        .graph_mode(BigValueGraphMode.AREA)
        .with_target(_target(Query(query), 0, instant=False))
        .span(width)
        .height(LOW)
    )


def lines(
    title: str,
    queries: Sequence[Query],
    unit: str,
    about: str,
    *,
    steps: Steps | None = None,
    maximum: float | None = None,
    stacked: bool = False,
    bars: bool = False,
    width: int = HALF,
) -> Panel:
    """Values over time, with the last and the highest value in the legend."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(about)
        .datasource(SOURCE)
        .unit(unit)
        .min(0)
        .thresholds(_thresholds(steps))
        .draw_style(GraphDrawStyle.BARS if bars else GraphDrawStyle.LINE)
        .fill_opacity(60 if stacked or bars else 8)
        .show_points(VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .display_mode(LegendDisplayMode.TABLE)
            .placement(LegendPlacement.BOTTOM)
            .calcs(["lastNotNull", "max"])
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
        .span(width)
        .height(TALL)
    )
    if maximum is not None:
        panel = panel.max(maximum)
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    for place, query in enumerate(queries):
        panel = panel.with_target(_target(query, place, instant=False))
    return panel


def rows(
    title: str,
    columns: Mapping[str, str],
    queries: Sequence[Query],
    about: str,
    *,
    units: Mapping[str, str] | None = None,
    width: int = FULL,
) -> Panel:
    """A table: `columns` names the labels (and `Value`, or `Value #A` ...) that are shown, in this order.

    Several queries are joined on the labels that they share.
    """
    panel = table.Panel().title(title).description(about).datasource(SOURCE).filterable(True).span(width).height(TALL)
    for place, query in enumerate(queries):
        panel = panel.with_target(_target(query, place, instant=True, as_table=True))
    if len(queries) > 1:
        panel = panel.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    panel = panel.with_transformation(
        models.DataTransformerConfig(id_val="filterFieldsByName", options={"include": {"names": list(columns)}})
    ).with_transformation(
        models.DataTransformerConfig(
            id_val="organize",
            options={
                "indexByName": {name: place for place, name in enumerate(columns)},
                "renameByName": dict(columns),
            },
        )
    )
    for column, unit in (units or {}).items():
        panel = panel.override_by_name(column, [models.DynamicConfigValue(id_val="unit", value=unit)])
    return panel


def pie(title: str, query: Query, unit: str, about: str, *, width: int = THIRD) -> Panel:
    return (
        piechart.Panel()
        .title(title)
        .description(about)
        .datasource(SOURCE)
        .unit(unit)
        .pie_type(piechart_models.PieChartType.DONUT)
        .legend(
            piechart.PieChartLegendOptions()
            .show_legend(True)
            .display_mode(LegendDisplayMode.TABLE)
            .placement(LegendPlacement.RIGHT)
            .values([piechart_models.PieChartLegendValues.VALUE])
        )
        .with_target(_target(query, 0, instant=True))
        .span(width)
        .height(TALL)
    )


def ranking(title: str, query: Query, unit: str, about: str, *, steps: Steps | None = None, width: int = HALF) -> Panel:
    """One bar per series, for comparison."""
    return (
        bargauge.Panel()
        .title(title)
        .description(about)
        .datasource(SOURCE)
        .unit(unit)
        .min(0)
        .thresholds(_thresholds(steps))
        .orientation(VizOrientation.HORIZONTAL)
        .with_target(_target(query, 0, instant=True))
        .span(width)
        .height(TALL)
    )


def heat(title: str, query: Query, unit: str, about: str, *, width: int = FULL) -> Panel:
    """The distribution of values over time: `query` returns the values, Grafana counts them per cell."""
    return (
        heatmap.Panel()
        .title(title)
        .description(about)
        .datasource(SOURCE)
        .calculate(True)
        .color(heatmap.HeatmapColorOptions().mode(heatmap_models.HeatmapColorMode.SCHEME).scheme("Oranges").steps(64))
        .y_axis(heatmap.YAxisConfig().unit(unit).min(0).max(1))
        .with_target(_target(query, 0, instant=False))
        .span(width)
        .height(TALL)
    )
