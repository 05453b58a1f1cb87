"""Prometheus, Alertmanager and Grafana for the agent: their configuration, and how they run and are checked."""
