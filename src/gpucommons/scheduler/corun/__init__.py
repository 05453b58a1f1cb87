"""Whether clients of one GPU run together or take turns, decided by measured progress. Pure: no clock, no driver.

The measure is GPM's activity of the device (SM, tensor, DRAM). It is additive in progress: while several clients run
together, the device's activity is close to the sum of each client's activity when alone, times its progress.

 1. Alone. The activity of each client is learnt in its own turns (`activity`). A rise counts at once, a fall must last.
 2. Together. A trial of half a second gives the device's activity with all of them; `progress` estimates from it how
    fast each one is, as a share of its speed alone.
 3. Division. Turns give n clients 1/n each. Running together must gain at least `MARGIN` in total, and every client
    must reach its fair share: one that falls behind gets turns alone for the rest (`division`).
 4. Evidence. A verdict holds until a client comes, leaves or changes its activity, or the device's activity contradicts
    it. Trials that end in turns are repeated ever more seldom (`coruns`).
"""
