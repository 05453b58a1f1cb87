"""The programs of the simulated lab, attributed by the real rules."""

from gpucommons.scheduler.programs.exemptions import Circumstances, Exempt, ShareScope, divide
from gpucommons.scheduler.programs.jobs import read_programs
from gpucommons.scheduler.programs.joining import linked_gpus
from gpucommons.scheduler.programs.matching import ProgramRule, exempting_rule, names
from gpucommons.simulation.lab_jobs import JOBS
from simulation.played_lab import PlayedLab

LAB = PlayedLab().at(600.0)
READING = read_programs(LAB, 600.0)
assert READING is not None
FOUND = divide(READING.processes, Circumstances(ShareScope.ALL, agent_uid=0), 0.0)
PROGRAMS = {program.first.pid: program for program in FOUND.programs}


def test_every_job_takes_part_or_is_exempt() -> None:
    everyone = (*FOUND.programs, *(one.program for one in FOUND.exempt))
    pids = sorted(process.pid for program in everyone for process in program.processes)
    assert pids == sorted(job.key.pid for job in JOBS)


def test_the_clients_of_mps_are_left_alone() -> None:
    exempt = {process.pid: one.why for one in FOUND.exempt for process in one.program.processes}
    assert exempt == {job.key.pid: Exempt.MPS for job in JOBS if "mps" in job.kind}


def test_a_training_on_three_gpus_is_one_program_and_one_queue() -> None:
    training = PROGRAMS[JOBS[0].key.pid]
    assert training.process_keys == {job.key for job in JOBS[:3]}
    assert training.display_name == "alice · train.py (pid 4100 and 2 more)"
    (queue,) = [queue for queue in linked_gpus(FOUND.programs) if training.key in queue.programs]
    assert queue.devices == training.devices
    assert len(training.devices) == 3


def test_jobs_of_every_kind_have_their_key_and_owner() -> None:
    kinds = {program.key.partition(":")[0] for program in FOUND.programs}
    assert kinds == {"container", "scope", "job", "unit"}
    assert PROGRAMS[JOBS[8].key.pid].display_name == f"chen · eval.py (pid {JOBS[8].key.pid})"
    assert PROGRAMS[JOBS[9].key.pid].user == "dana"
    assert all(device.startswith("MIG-") for device in PROGRAMS[JOBS[9].key.pid].devices)


def test_rules_and_targets_reach_them() -> None:
    students = ProgramRule("students", user="dana", share=False)
    exempted = [program for program in FOUND.programs if exempting_rule([students], program)]
    assert {program.user for program in exempted} == {"dana"}
    for program in FOUND.programs:
        assert ("user:chen" in names(program)) == (program.user == "chen")
        assert ("unit:ollama.service" in names(program)) == (program.first.pid == JOBS[12].key.pid)
        assert ("container:train-vit" in names(program)) == (program.key == PROGRAMS[JOBS[0].key.pid].key)
