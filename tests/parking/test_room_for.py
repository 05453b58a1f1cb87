"""Which programs make room: what holds for every choice, over thousands of random situations."""

import random
from collections.abc import Iterator
from dataclasses import replace

from gpucommons.model.host import GIB, HostMemory
from gpucommons.scheduler.parking.plan import can_take_turns_after, kept_rooms, room_for, room_in_turn
from gpucommons.scheduler.parking.values import (
    DeviceRoom,
    ParkSituation,
    ParkStage,
    ParkTerms,
    PlannedProgram,
    RoomClaims,
    RoomNeed,
)

TERMS = ParkTerms(idle_after_s=60.0, min_residence_s=120.0)
DEVICES = ("a", "b")
# Most programs are on their GPU: choices are among those.
STAGES = (*4 * (ParkStage.RESIDENT,), ParkStage.WAKING, ParkStage.PARKED, ParkStage.PARKING)
# Some mistakes show in one situation of a thousand. Each costs some microseconds: less than with Hypothesis.
SITUATIONS = 4000


class Dice(random.Random):
    def size(self, most: int = 5) -> int:
        return self.randint(1, most) * GIB

    def situation(self) -> ParkSituation:
        programs = tuple(
            PlannedProgram(
                str(number),
                self.choice(STAGES),
                {device: self.size() for device in self.sample(DEVICES, self.choice((1, 1, 2)))},
                settled_s=-1.0,
            )
            for number in range(self.randint(0, 6))
        )
        rooms = {device: DeviceRoom(self.randint(0, 6) * GIB, 9.0) for device in DEVICES}
        return ParkSituation(programs, rooms, HostMemory(100 * GIB, self.randint(10, 40) * GIB), now_s=10.0)

    def need(self, size: int | None) -> RoomNeed:
        devices = tuple(self.sample(DEVICES, self.randint(1, 2)))
        return RoomNeed(devices, size, 1.0, kept={"a": self.randint(0, 2) * GIB}, id="need")


def rolls() -> Iterator[Dice]:
    dice = Dice(20261118)
    return (dice for _ in range(SITUATIONS))


def missing_bytes(situation: ParkSituation, need: RoomNeed, device: str, leaving: list[PlannedProgram]) -> int:
    """How much room is missing on the device once these have left."""
    freed = sum(program.memory.get(device, 0) for program in leaving)
    needed = (need.bytes or 0) + need.kept.get(device, 0) + TERMS.gpu_reserve_bytes
    return needed - situation.rooms[device].free_bytes - freed


def test_those_that_leave_make_the_room_and_none_leaves_in_vain() -> None:
    chosen = 0
    for dice in rolls():
        need = dice.need(None if dice.random() < 0.2 else dice.size(12))
        chosen += check_choice(dice.situation(), need, dice.randint(0, 20) * GIB)
    assert chosen > SITUATIONS / 10, "there were choices"


def check_choice(situation: ParkSituation, need: RoomNeed, host_bytes: int) -> bool:
    """Whether something was to leave."""
    others = situation.resident
    leaving = list(room_for(TERMS, situation, need, others, host_bytes))
    moved = sum(program.bytes for program in leaving)
    assert moved <= host_bytes, "host memory holds them"
    assert all(program in others for program in leaving)
    if need.bytes is None:
        staying = {ParkStage.RESIDENT, ParkStage.WAKING}
        there = [
            [one for one in situation.programs if device in one.memory and one.stage in staying]
            for device in need.devices
        ]
        assert not leaving or leaving in there, "a device is empty then"
        return bool(leaving)
    if leaving:
        made = [device for device in need.devices if missing_bytes(situation, need, device, leaving) <= 0]
        assert made
        assert any(
            all(
                missing_bytes(situation, need, device, [one for one in leaving if one is not program]) > 0
                for program in leaving
            )
            for device in made
        ), "each of them is needed"
    for device in need.devices:
        alone = list(room_for(TERMS, situation, need._replace(devices=(device,)), others, host_bytes))
        if alone or missing_bytes(situation, need, device, []) <= 0:
            assert moved <= sum(program.bytes for program in alone), "on the device where the least is moved"
    return bool(leaving)


def test_less_room_never_makes_turns_possible() -> None:
    answers = set()
    for dice in rolls():
        situation, need, less = dice.situation(), dice.need(dice.size()), dice.size()
        device = need.devices[0]
        leaving = [one for one in situation.resident if device in one.memory and dice.random() < 0.5]
        room, host = situation.rooms[device], situation.host
        assert host is not None
        tight = replace(situation, rooms={**situation.rooms, device: room._replace(free_bytes=room.free_bytes - less)})
        promised = replace(situation, claims=RoomClaims(promised={device: less}))
        poor = replace(situation, host=host._replace(available_bytes=host.available_bytes - less))
        reserved = TERMS._replace(gpu_reserve_bytes=TERMS.gpu_reserve_bytes + less)

        def is_possible(
            given: ParkSituation,
            terms: ParkTerms = TERMS,
            choice: tuple[RoomNeed, list[PlannedProgram], str] = (need, leaving, device),
        ) -> bool:
            return can_take_turns_after(terms, given, *choice)

        with_less = is_possible(tight)
        assert with_less == is_possible(promised) == is_possible(situation, reserved), "it is all the same room"
        assert is_possible(situation) or not (with_less or is_possible(poor))
        answers.add((is_possible(situation), with_less))
    assert answers == {(True, True), (True, False), (False, False)}


def test_room_is_kept_for_every_program_that_waits_and_has_it() -> None:
    for dice in rolls():
        situation, terms = dice.situation(), TERMS._replace(oversubscribe=dice.random() < 0.5)
        programs = tuple(
            replace(program, wakes_since_s=5.0) if program.stage is ParkStage.PARKED else program
            for program in situation.programs
        )
        kept = kept_rooms(terms, replace(situation, programs=programs))
        moving = {device for program in programs if program.stage is ParkStage.PARKING for device in program.memory}
        for program in programs:
            if program.stage is ParkStage.PARKED:
                has_room = all(
                    situation.rooms[device].free_bytes >= size + terms.gpu_reserve_bytes
                    for device, size in program.memory.items()
                )
                is_next = has_room or not moving.isdisjoint(program.memory)
                assert (program.key in kept) == (is_next or terms.oversubscribe)


def test_one_that_comes_back_gives_host_memory_for_later_turns() -> None:
    """A program of 40 GiB waits, and 62 GiB of host memory are left. Whichever makes room comes back only when the one
    of 50 GiB leaves: 102 GiB hold that one with the one of 45, and not with the one of 60."""
    sizes = {"large": 60, "small": 45, "stays": 50}
    large, small, stays = (PlannedProgram(key, ParkStage.RESIDENT, {"a": size * GIB}) for key, size in sizes.items())
    waits = PlannedProgram("waits", ParkStage.PARKED, {"a": 40 * GIB}, wakes_since_s=5.0)
    host = HostMemory(128 * GIB, 62 * GIB + 128 * GIB // 10 + 1)
    given = ParkSituation((large, small, stays, waits), {"a": DeviceRoom(0, 9.0)}, host, now_s=10.0)
    need = RoomNeed(("a",), 40 * GIB, 5.0, id="waits")
    assert room_in_turn(TERMS, given, need, [], [large, small]) == [small]
