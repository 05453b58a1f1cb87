"""Which clients of one GPU run together and which take turns. Pure: no clock, no driver.

Clients run together unless there is a reason for turns. A reason is fairness between owners, or a gain that was
measured, or a class. Quotas and memory that does not fit are the policy's, not of this package.

The measure of progress is GPM's activity of the device (SM, tensor, DRAM). It is additive: while several clients run
together, the device's activity is close to the sum of each client's activity when alone, times its progress
(`progress_together`). What a client does alone and how much of the GPU each process uses is kept in `facts`.

 1. Light clients. A client that alone keeps the GPU busy for less than half of the time, or in bursts, is light. It
    always runs, and no client is paused to measure it again, except once where it has most of an equal part of the
    GPU. What it uses is charged to its owner. One that uses little of the GPU may be light although a look found it
    busy: before three looks agree it is paused for fairness only.
 2. Fairness. Where owners compete and one of them gets less than its share while another gets more, owners take turns.
    All clients of an owner run in its turn. The cause is structural where the owners have different numbers of
    programs; else it is seen in what their processes use, for some seconds.
 3. Gain. Clients take turns one by one where their total progress together is so low that turns gain at least
    `turn_gain`. Each of them has been seen alone twice before that is believed, or once for a gain of 15 %.
 4. Looks. To see a client alone, the others are paused for a look of 0.3 s. Times in which it is alone anyway come
    first: before a second client starts, while the others rest, in its own turns. Pauses for looks take at most 3 %
    of a client's first minute and 1 % of each later one (`PauseBudget`), by construction: a look that would exceed the
    budget of a client that it pauses does not take place.
 5. Doubt. A verdict holds until its set of clients changes. It is checked after two minutes, then ever more seldom, up
    to once an hour; sooner where a client uses the GPU in another way than before. A verdict for turns is checked by a
    second together, which pauses no client.
 6. Accounts. Time is served to owners, and within an owner to its clients: the one that has had least is next. An
    account outlives the programs of its owner, so that a new program gains nothing. A look is charged to the owner of
    the client that is measured. Where turns are taken, a newcomer waits for the turn of its owner.
 7. Classes. A client of class latency always runs, like a light one. What it uses, and the time for which others are
    held back for it, is charged to its owner; an owner that has had more than its share of the last minute so has
    clients of class batch only, until it has had less (`LatencyUse`). A client of class background runs while no
    client of another class competes, and else for a short part of each period (`background_ratio`).
"""
