"""Prometheus, Alertmanager and Grafana beside the agent: what they are told, and how they are run and checked."""
