"""A simulated GPU on which the policy runs programs and clients that change what they do.

Programs use the GPU in stages. A program joins and withdraws a second after it begins and ceases to use the GPU, as the
agent's readings allow; with `rests_s`, it withdraws so long after its last use. Pausing takes time, and may fail.
Measurements see exactly what ran between their two moments.

ReadSimulation has the readings themselves: when they come, and that the driver's samples are means over a second.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpucommons.config.scheduler import SchedulerSettings
from gpucommons.model.gpu import DeviceActivity
from gpucommons.scheduler.corun.coruns import Way
from gpucommons.scheduler.policy.state import GIB, PROGRAM, Action, Client, ClientStanding, Measure, Send
from gpucommons.scheduler.protocol.wire import MessageType
from scheduler.gpu_models import GpuModel, Kind, MatrixModel
from scheduler.simulation import Script, Simulation

# From the first use of the GPU to the reading that shows it, and from the last.
SEEN_S = 1.0
PAUSE_S = (0.001, 0.004)
RESUME_S = 0.0003
DEEP_QUEUE_S = 0.45
# A program that could not be paused runs for so long before the next attempt.
AGAIN_S = 0.25
REQUEST_S = 0.001
ANSWER_S = 0.001

Event = Callable[[], Sequence[Action]]
# Length in seconds and kind; None: it does not use the GPU.
Stage = tuple[float, Kind | None]


@dataclass
class Job(Script):
    """A program, or a client of nvshare that requests while it has work.

    `runs`: it is not stopped. `slow`: the share of its pauses that take as long as a deep queue; `failing`: that fail.
    """

    stages: Sequence[Stage] = ()
    runs: bool = True
    slow: float = 0.0
    failing: float = 0.0
    begun_s: float = 0.0
    # When it first took part.
    joined_s: float = float("inf")
    progress_s: float = 0.0
    stops: int = 0
    stopped_s: float | None = None
    look_until_s: float | None = None
    longest_pause_s: float = 0.0
    paused_s: float = 0.0
    # Pauses in which another program was looked at: begin and end.
    looks: list[tuple[float, float]] = field(default_factory=list)
    used_s: float = 0.0
    # Answers of the pauser to earlier orders do not count.
    orders: int = 0

    def kind(self, now_s: float) -> Kind | None:
        left_s = now_s - self.begun_s
        for length_s, kind in self.stages:
            if left_s < length_s:
                return kind
            left_s -= length_s
        return None


class PhasedSimulation(Simulation):
    def __init__(
        self,
        model: GpuModel | float,
        seed: int = 0,
        settings: SchedulerSettings | None = None,
        *,
        metered: bool = True,
        reads_use: bool = True,
        seen_s: float = SEEN_S,
        rests_s: float | None = None,
        answer_s: float = ANSWER_S,
    ) -> None:
        super().__init__(settings)
        self._dice = random.Random(seed)
        self.model = MatrixModel(model) if isinstance(model, float) else model
        # The device's activity, integrated over time.
        self._active_s = [0.0, 0.0, 0.0, 0.0]
        self._used_s = 0.0
        self._seen_s = seen_s
        self._rests_s = seen_s if rests_s is None else rests_s
        self._answer_s = answer_s
        self.jobs: list[Job] = []
        if reads_use:
            self.at(self.now + 1.0, self._read_use)
        self.perform(self.policy.resize(self.gpu, 100 * GIB, self.now))
        self.perform(self.policy.meter(self.gpu, metered, self.now))

    # Jobs

    def start(
        self,
        stages: Sequence[Stage],
        *,
        program: bool = True,
        core: int = 100,
        owner: str = "",
        slow: float = 0.0,
        failing: float = 0.0,
    ) -> Job:
        client = Client(next(self._ids), self.gpu, version=PROGRAM if program else 2, owner=owner)
        job = Job(client, stages=stages, slow=slow, failing=failing, runs=program, begun_s=self.now)
        self.scripts[client.id] = job
        self.jobs.append(job)
        self.perform(self.policy.register(client, self.now, core))
        when_s = self.now
        for length_s, kind in stages:
            seen_s = self._rests_s if kind is None else self._seen_s
            delay_s = seen_s if program or kind is None else REQUEST_S
            self.at(when_s + delay_s, lambda: self._check_use(job))
            when_s += length_s
            # The stage ends here: what runs changes.
            self.at(when_s, lambda: ())
        self.at(when_s + self._rests_s, lambda: self._check_use(job))
        return job

    def end(self, job: Job) -> None:
        """The process ends."""
        job.stages, job.orders = (), job.orders + 1
        self.jobs.remove(job)
        self.perform(self.policy.disconnect(job.client, self.now))

    def _read_use(self) -> Sequence[Action]:
        """The driver's samples of the processes, once a second."""
        seen = [job for job in self.jobs if job.client.is_program and job.client.standing is not ClientStanding.IDLE]
        ratios = {job.client.id: min(1.0, job.used_s) for job in seen}
        for job in self.jobs:
            job.used_s = 0.0
        self.policy.sample_use(self.gpu, ratios, min(1.0, self._used_s), {}, self.now)
        self._used_s = 0.0
        self.at(self.now + 1.0, self._read_use)
        return ()

    def _check_use(self, job: Job) -> Sequence[Action]:
        """What a reading shows: whether the program uses the GPU; or the client's own request."""
        uses = job.kind(self.now) is not None
        standing = job.client.standing
        if uses and standing is ClientStanding.IDLE:
            job.joined_s = min(job.joined_s, self.now)
            if job.client.is_program:
                return self.policy.join(job.client, self.now)
            return self.policy.request(job.client, self.now)
        if not uses and standing is not ClientStanding.IDLE:
            job.orders += 1
            if job.client.is_program:
                self._continue(job)
                return self.policy.withdraw(job.client, self.now)
            if standing is ClientStanding.RUNNING:
                job.runs = job.holds = False
                return self.policy.release(job.client, self.now)
        return ()

    # The pauser, and the clients

    def _deliver(self, script: Script, action: Send) -> None:
        assert isinstance(script, Job)
        job = script
        job.received.append(action.message)
        if action.message is MessageType.LOCK_OK:
            job.orders += 1
            job.holds = True
            self._later(job, RESUME_S, lambda: self._continue(job))
        elif action.message is MessageType.DROP_LOCK:
            job.orders += 1
            if job.client.is_program:
                self._pause(job)
            else:
                self._later(job, self._dice.uniform(*PAUSE_S), lambda: self._release(job))

    def _later(self, job: Job, delay_s: float, event: Event) -> None:
        order = job.orders
        self.at(self.now + delay_s, lambda: event() if job.orders == order else ())

    def _pause(self, job: Job) -> None:
        lot = self._dice.random()
        delay_s = DEEP_QUEUE_S if lot < job.slow else self._dice.uniform(*PAUSE_S)
        if job.slow <= lot < job.slow + job.failing:
            self._later(
                job, delay_s, lambda: self.policy.record_pause_failure(job.client, self.now + AGAIN_S, self.now)
            )
        else:
            self._later(job, delay_s, lambda: self._stop(job))

    def _stop(self, job: Job) -> Sequence[Action]:
        job.runs = False
        job.stops += 1
        job.stopped_s = self.now
        looking = self.gpu.phases.current is not None and self.gpu.phases.current.way is Way.MEASURING
        job.look_until_s = self.gpu.phases.until_s if looking else None
        return self.policy.record_pause(job.client, self.now)

    def _continue(self, job: Job) -> Sequence[Action]:
        job.runs = True
        if job.stopped_s is not None:
            job.longest_pause_s = max(job.longest_pause_s, self.now - job.stopped_s)
            job.paused_s += self.now - job.stopped_s
            if job.look_until_s is not None:
                # A turn of another program may follow the look.
                job.looks.append((job.stopped_s, min(self.now, job.look_until_s)))
            job.stopped_s = None
        return ()

    def _release(self, job: Job) -> Sequence[Action]:
        job.runs = job.holds = False
        released = self.policy.release(job.client, self.now)
        if job.kind(self.now) is None:
            return released
        return [*released, *self.policy.request(job.client, self.now)]

    # The device

    def pass_until(self, when_s: float) -> None:
        while when_s > self.now:
            elapsed_s = min(self.model.step_s, when_s - self.now)
            active = [(job, kind) for job in self.jobs if job.runs and (kind := job.kind(self.now)) is not None]
            kinds = [kind for _, kind in active]
            parts = zip(active, self.model.progress(kinds), self.model.use(kinds), strict=True) if kinds else ()
            for (job, _), progress, use in parts:
                job.progress_s += progress * elapsed_s
                job.used_s += use * elapsed_s
                self._used_s += use * elapsed_s
            for metric, value in enumerate(self.model.activity(kinds, self.now)):
                self._active_s[metric] += (value or 0.0) * elapsed_s
            self.now += elapsed_s
        super().pass_until(when_s)

    def measure(self, action: Measure) -> None:
        self.at(action.begin_s, lambda: self._begin_measure(action))

    def _begin_measure(self, action: Measure) -> Sequence[Action]:
        begin_s, before = self.now, tuple(self._active_s)
        if action.end_s > begin_s:
            self.at(action.end_s, lambda: self._end_measure(action, begin_s, before))
        return ()

    def _end_measure(self, action: Measure, begin_s: float, before: tuple[float, ...]) -> Sequence[Action]:
        span_s = self.now - begin_s
        noise = self._dice.uniform(0.995, 1.005)
        sums = [(now - was) / span_s * noise for now, was in zip(self._active_s, before, strict=True)]
        activity = DeviceActivity(*(min(1.0, value) for value in sums))
        self.at(
            self.now + self._answer_s,
            lambda: self.policy.record_activity(action.gpu, action.number, activity, begin_s, self.now)[1],
        )
        return ()

    # Results

    def play(self, seconds: float) -> dict[int, float]:
        """The progress of each job per second, by client id."""
        before = {job.client.id: job.progress_s for job in self.jobs}
        self.run(seconds)
        return {job.client.id: (job.progress_s - before[job.client.id]) / seconds for job in self.jobs}

    def best(self, kinds: Sequence[Kind]) -> float:
        """The better of always in turns and always together; together only where that leaves every job its share."""
        together = self.model.progress(kinds)
        fair = min(together) >= 1.0 / len(kinds) - 0.01
        return max(1.0, sum(together) if fair else 1.0)


class ReadSimulation(PhasedSimulation):
    """Programs join as readings show them: each second, and every `soon_s` while programs come and go."""

    def __init__(self, model: GpuModel | float, seed: int, soon_s: float) -> None:
        super().__init__(model, seed, reads_use=False, seen_s=float("inf"))
        self._soon_s = soon_s
        # Processes of a known program that no reading has shown.
        self._unseen: list[Job] = []
        self._seen: set[int] = set()
        # The time that each client and all together had used at the last readings.
        self._samples: deque[tuple[float, dict[int, float], float]] = deque()
        self.at(self.now + SEEN_S, self._read)

    def add_process(self, job: Job) -> None:
        """Another process of this job. It runs until a reading shows it; then it is paused and resumed with the job."""
        process = Job(job.client, stages=job.stages, begun_s=self.now)
        self._unseen.append(process)
        self.jobs.append(process)

    def _read(self) -> Sequence[Action]:
        coruns, current = self.gpu.phases.coruns, self.gpu.phases.current
        for process in self._unseen:
            self.jobs.remove(process)
            self.policy.record_growth(process.client, self.now)
        self._unseen.clear()
        contested = (current is not None and current.way is Way.TURNS) or coruns.has_passing_programs(self.now)
        for job in self.jobs:
            if job.client.id not in self._seen:
                self._seen.add(job.client.id)
                self.policy.record_growth(job.client, self.now)
            if contested or self.now - job.begun_s >= SEEN_S:
                self.perform(self._check_use(job))
        self._sample()
        self.at(self.now + (self._soon_s if coruns.has_passing_programs(self.now) else SEEN_S), self._read)
        return ()

    def _sample(self) -> None:
        """Without the samples of programs in their first second: they come later."""
        self._samples.append((self.now, {job.client.id: job.used_s for job in self.jobs}, self._used_s))
        while len(self._samples) > 1 and self._samples[1][0] <= self.now - SEEN_S:
            self._samples.popleft()
        begin_s, before, total_s = self._samples[0]
        span_s = self.now - begin_s
        if span_s <= 0:
            return
        joined = [job for job in self.jobs if job.client.standing is not ClientStanding.IDLE]
        used = {job.client.id: job.used_s - before.get(job.client.id, job.used_s) for job in joined}
        ratios = {id: min(1.0, used_s / span_s) for id, used_s in used.items()}
        self.policy.sample_use(self.gpu, ratios, min(1.0, (self._used_s - total_s) / span_s), {}, self.now)
