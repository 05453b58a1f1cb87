"""Grafana's dashboards as Python. `make dashboards` generates the JSON files that are committed and shipped."""
