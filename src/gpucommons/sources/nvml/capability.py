"""What each GPU has refused for good, so that it is not asked again until the driver changes. Pure."""


class Capabilities:
    def __init__(self) -> None:
        self._driver_version: str | None = None
        self._refused: set[tuple[str, str]] = set()

    def meet_driver(self, version: str) -> bool:
        """Another driver may support what the last one did not: forget. True when it is another one."""
        changed = self._driver_version is not None and version != self._driver_version
        if changed:
            self._refused.clear()
        self._driver_version = version
        return changed

    def refuse(self, uuid: str, function: str) -> None:
        self._refused.add((uuid, function))

    def refuses(self, uuid: str, function: str) -> bool:
        return (uuid, function) in self._refused

    def forget(self, uuid: str) -> None:
        """Splitting a GPU by MIG, or joining it again, changes what it supports."""
        self._refused = {pair for pair in self._refused if pair[0] != uuid}
