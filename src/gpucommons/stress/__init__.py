"""Keeps a GPU busy at a chosen utilisation, to see dashboards and alerts move. Never installs anything."""
