"""The mirror against a simulated daemon: for any order of events and responses it ends up equal to the daemon."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from gpucommons.model.workloads import Container, ContainerState
from gpucommons.sources.containers.source import Mirror
from unhurried import unhurried

MOST = 2
IDS = st.sampled_from([f"{number:064x}" for number in range(5)])


def a_container(id: str, name: str = "a") -> Container:
    return Container(id, name, "docker", ContainerState.RUNNING)


class MirrorMachine(RuleBasedStateMachine):
    """The daemon changes; its events arrive later, in order, some twice. Responses are as of the request."""

    asked = Bundle("asked")
    lists = Bundle("lists")

    @initialize()
    def begin(self) -> None:
        self.daemon: dict[str, Container] = {}
        self.events: list[tuple[str, bool]] = []
        self.mirror = Mirror(MOST)

    @rule(id=IDS, name=st.sampled_from("xyz"))
    def daemon_makes_or_renames(self, id: str, name: str) -> None:
        self.daemon[id] = a_container(id, name)
        self.events.append((id, False))

    @rule(id=IDS)
    def daemon_removes(self, id: str) -> None:
        if self.daemon.pop(id, None) is not None:
            self.events.append((id, True))

    @rule(again=st.booleans())
    def an_event_arrives(self, again: bool) -> None:
        if not self.events:
            return
        id, is_gone = self.events[0]
        if not again:
            self.events.pop(0)
        if is_gone:
            self.mirror.forget(id)
        else:
            self.mirror.touch(id)

    @rule(target=asked)
    def ask(self) -> tuple[str, Container | None] | None:
        id = self.mirror.take()
        return None if id is None else (id, self.daemon.get(id))

    @rule(answer=consumes(asked), fails=st.booleans())
    def an_answer_arrives(self, answer: tuple[str, Container | None] | None, fails: bool) -> None:
        if answer is None:
            return
        if fails:
            self.mirror.fail(answer[0])
        else:
            self.mirror.put(*answer)

    @rule(target=lists)
    def ask_for_the_list(self) -> tuple[frozenset[str], list[str]]:
        return self.mirror.ids(), list(self.daemon)

    @rule(answer=consumes(lists))
    def the_list_arrives(self, answer: tuple[frozenset[str], list[str]]) -> None:
        self.mirror.take_list(*answer)

    @invariant()
    def never_holds_more_than_it_may(self) -> None:
        if hasattr(self, "mirror"):
            assert len(self.mirror.reading().by_id) <= MOST

    def teardown(self) -> None:
        """Deliver everything; then the mirror must equal the daemon, up to its limit."""
        if not hasattr(self, "mirror"):
            return
        while self.events:
            self.an_event_arrives(again=False)
        for unanswered in tuple(self.mirror._in_flight):
            self.mirror.fail(unanswered)
        self.mirror.retry_failed()
        while (id := self.mirror.take()) is not None:
            self.mirror.put(id, self.daemon.get(id))
        assert self.mirror.is_complete
        reading = self.mirror.reading()
        assert len(reading.by_id) == min(len(self.daemon), MOST)
        for id, container in reading.by_id.items():
            assert container == self.daemon[id]


TestMirror = MirrorMachine.TestCase
TestMirror.settings = settings(unhurried(100), stateful_step_count=30)


def test_an_event_after_the_list_request_takes_precedence() -> None:
    mirror = Mirror(MOST)
    known_before = mirror.ids()
    mirror.touch("made meanwhile")
    mirror.take_list(known_before, [])
    assert mirror.take() == "made meanwhile"


def test_a_container_missing_from_the_list_is_removed() -> None:
    mirror = Mirror(MOST)
    mirror.touch("c")
    mirror.take()
    mirror.put("c", a_container("c"))
    mirror.take_list(mirror.ids(), ["d"])
    assert mirror.reading().by_id == {}
    assert mirror.take() == "d"


def test_a_container_created_again_survives_an_old_response() -> None:
    mirror = Mirror(MOST)
    mirror.touch("c")
    mirror.take()
    mirror.touch("c")
    mirror.put("c", None)
    assert mirror.take() == "c"
    mirror.put("c", a_container("c"))
    assert "c" in mirror.reading().by_id


def test_a_container_beyond_the_limit_takes_the_next_free_place() -> None:
    mirror = Mirror(MOST)
    mirror.take_list(mirror.ids(), ["a", "b", "c", "d"])
    while (id := mirror.take()) is not None:
        mirror.put(id, a_container(id))
    assert sorted(mirror.reading().by_id) == ["a", "b"]
    mirror.forget("d")
    mirror.forget("a")
    assert mirror.take() == "c"
    mirror.put("c", a_container("c"))
    assert sorted(mirror.reading().by_id) == ["b", "c"]


def test_a_response_after_the_removal_is_ignored() -> None:
    mirror = Mirror(MOST)
    mirror.touch("c")
    assert mirror.take() == "c"
    mirror.forget("c")
    mirror.put("c", a_container("c"))
    assert mirror.reading().by_id == {}


def test_an_event_during_an_inspection_causes_exactly_one_more() -> None:
    mirror = Mirror(MOST)
    mirror.touch("c")
    assert mirror.take() == "c"
    mirror.touch("c")
    mirror.touch("c")
    assert mirror.take() is None
    mirror.put("c", a_container("c", "old"))
    assert mirror.take() == "c"
    assert mirror.take() is None
    mirror.put("c", a_container("c", "new"))
    assert mirror.reading().by_id["c"].name == "new"
    assert mirror.take() is None


def test_a_failed_inspection_keeps_what_was_known() -> None:
    mirror = Mirror(MOST)
    mirror.touch("c")
    mirror.take()
    mirror.put("c", a_container("c"))
    mirror.touch("c")
    mirror.take()
    mirror.fail("c")
    assert mirror.reading().by_id["c"].name == "a"
    mirror.retry_failed()
    assert mirror.take() == "c"
    mirror.put("c", a_container("c", "b"))
    assert mirror.reading().by_id["c"].name == "b"


def test_a_published_reading_does_not_change() -> None:
    mirror = Mirror(MOST)
    mirror.touch("c")
    mirror.take()
    mirror.put("c", a_container("c"))
    held = mirror.reading()
    assert mirror.reading() is held, "no change: the same object"
    mirror.touch("c")
    mirror.take()
    mirror.put("c", a_container("c"))
    assert mirror.reading() is held, "an equal response is not a change"
    mirror.forget("c")
    assert list(held.by_id) == ["c"]
    assert list(mirror.reading().by_id) == []
