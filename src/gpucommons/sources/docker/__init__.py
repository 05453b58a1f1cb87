"""Containers as the Docker Engine API tells them, which Podman's socket speaks too."""
