"""YAML by libyaml, where PyYAML was built with it: the loader in Python takes a second for our rules and manifests, in
each process that collects the tests."""

from typing import Any

import yaml

_LOADER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


def yaml_of(text: str) -> Any:
    return yaml.load(text, _LOADER)


def yaml_documents(text: str) -> list[Any]:
    """Without the empty ones."""
    return [document for document in yaml.load_all(text, _LOADER) if document]
