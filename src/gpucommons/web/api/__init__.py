"""The JSON API: pure functions from what a viewer may see to JSON-able values, one module per resource."""
