"""What each GPU draws while it does nothing, learnt as we go. Pure: told each reading, asked afterwards."""


class IdleDraw:
    """The least that a GPU was seen to draw while no time of it was used; None until that was seen."""

    def __init__(self) -> None:
        self._least_milliwatts: dict[str, int] = {}

    def see(self, gpu_uuid: str, sm_millionths: int | None, power_milliwatts: int | None) -> int | None:
        if sm_millionths == 0 and power_milliwatts is not None:
            least = self._least_milliwatts.get(gpu_uuid, power_milliwatts)
            self._least_milliwatts[gpu_uuid] = min(least, power_milliwatts)
        return self._least_milliwatts.get(gpu_uuid)
