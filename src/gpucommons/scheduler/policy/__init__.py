"""Which clients run on each GPU. Pure: an event and a time go in, actions come out; no clock, socket or thread.

An event is a method of `Policy` (policy.py). It changes the state (state.py) through `Transitions` (transitions.py),
the only code that changes a client's standing, and attained.py, the only code that changes the order of the queue. Then
every GPU that it touched is evaluated in full, by verdicts that change nothing (evaluation.py). `deadline_s` of a GPU
is when `tick` must be called next. state.py lists which module changes which part of the state.

A client is a connection of nvshare (v1 or v2), or a plain program (`is_program`). A program neither requests nor
releases: it joins, is paused after DROP_LOCK and resumed by LOCK_OK, and withdraws. Its memory stays on the GPU while
it is paused, so it is taken off the safe limit of the other clients and does not count as the need of a turn.

The rules, in the order in which an evaluation applies them:

 1. Resending. A client that does not answer DROP_LOCK gets it again every 5 s. After `revoke_after_s` its turn ends in
    the accounts (revoked). Its memory still counts, as far as NVML shows it. `fence` closes its socket, by default
    after its second revocation. Revocations are remembered by process (uid, pid, start time) for ten minutes, also
    when the client connects again; a client that disconnects 5 s or more after DROP_LOCK counts as revoked. While two
    are remembered, the process may not connect. They are remembered by owner, too: while one is, all processes of the
    owner have 5 s to answer. What a client had by keeping its turn stays in the account of its owner. A program that
    could not be paused (`record_pause_failure`), or that the pauser resumed by itself (`record_resume`), runs until the
    time given with it: no rule stops it before. One that its user has stopped withdraws, and rejoins when it is
    continued. While a driver's call for a program does not return (`hang`), rule 5 does not apply on its GPU: all other
    programs run together.
 2. Overload. If the running clients grow past the safe limit, all but the oldest are dropped (memory). No client joins
    until the memory of the running ones is down to 90 % of the limit, or one of them runs alone. Programs continue.
 3. Refill. A throttled client queues again once its bucket is refilled; a program after half of `max_pause_s` at the
    latest, until its quota is checked again.
 4. Spending. A running client whose core quota is spent is dropped (quota). Core limits that sum above 100 among the
    clients that run, wait or are throttled are scaled down in proportion. With `work_conserving` a client that runs
    alone while no other waits is not dropped.
 5. Phases (phasing.py), in mode auto, while the GPU's activity is known and all clients that run or wait fit into
    memory at once. `corun/` decides by measured progress which clients run next and for how long: together, in turns of
    `turn_quantum_s`, or both by turns. Clients that are not in the phase are dropped (quantum); its time begins when
    they have stopped, and the time that they take is theirs. A lone client has no phase that ends, and is not measured.
    Turns are shorter where programs would else be paused for more than 0.4 of `max_pause_s`. A program that was paused
    for half of `max_pause_s` runs next, whatever else is due.
 6. Admission, where phases do not apply. Programs that wait run at once: only phases and quotas stop them. Clients run
    if none but programs run, or if they fit next to the running clients:
      - serial: nothing fits.
      - v1 clients do not report their memory: while NVML does not show it either (`blind`), they run alone, except in
        concurrent mode.
      - memory: the needs of all running clients, and the memory that revoked clients hold, stay within the safe
        limit. The need is the memory that a client reports, at most the device's, and its overhead; NVML's value for
        its process where that is more.
      - auto, while the GPU's activity is known: their activities alone sum to at most 0.75 (SM activity) or 1
        (utilisation). A client of unknown activity runs alone; a turn that begins on an empty GPU is measured.
    The first client in the order below that does not fit is the front. Its room is reserved: a later client passes it
    only if that does not delay it. It must fit next to the front, or else it is a guest: it leaves when the room of the
    front is due, and is admitted only if it gets the shortest turn for its memory until then. No client passes while a
    running client was just dropped, or once the front has waited `max_bypass_s`, if that is set. A client that waits
    for memory gets WAIT_FOR_MEM once, and MEM_AVAILABLE before LOCK_OK.
 7. Making room. While the front waits, the turns that must end for it are dropped (quantum), all at once, when each has
    lasted its quantum and its owner has had as much as that of the front. Turns that began since it is the front do not
    put that off; guests leave with the others, or at once where none but guests are in the way. The front then runs
    before those that were dropped. Of several turns whose end would do, those of the owners that had most are dropped.
    The quantum grows with the memory to be moved, as far as NVML has seen it.

Order (attained.py, with the reason why it is fair). The owner (`fair_between`) whose clients have had turns for the
least time comes first, and of its clients the one that has. Then follow one client of each other owner, those without a
turn first, then the others; the owner of the client that was the front last is behind all. An owner that was away, and
a new one, begins with what the least served present one has had. An owner that disconnects is remembered. In phases,
clients of one owner share the weight of one client.

Fair means max-min fair in time with a turn: while n owners request the GPU, each has at least 1/n of the time less one
quantum in total, and each of the k clients of an owner 1/k of that, whatever their memory and activity. What an owner
does not request is divided among the others. Room that is left over is in addition, for clients that fit.

Each GPU has its own queue, by UUID. Clients whose GPU is not known yet share one queue, whatever they name: two clients
that may mean the same GPU are never in two queues, so they never both have an exclusive turn. When their GPUs become
known:

 8. Moving. All such clients move to the queues of their GPUs at once, with their turns, waits and debts, before any
    queue is served again. Where a turn arrives on a GPU that has turns already, all but the oldest are dropped
    (quantum); the admission rules count each of them until it is released.

Repeats are harmless: REQ_LOCK of a running client is answered again, of a waiting client ignored; LOCK_RELEASED out of
turn is ignored. All are counted in `refusals`. While the scheduler is off every client runs, unbilled.
"""
