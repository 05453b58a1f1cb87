"""Listeners, access and routes: HTTP requests in, cached bytes out. Never reads the machine."""
