"""Grafana's dashboards as Python: drawn by `make dashboards` into JSON files that are committed and shipped."""
