"""Keep a GPU busy at a chosen utilisation, to test dashboards and alerts."""
