"""Listeners, routes and pages: HTTP in, cached bytes out. Never reads the machine."""
