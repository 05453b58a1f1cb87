"""From processes to owners, and which owner holds which slot. Opens no socket and calls no driver.

Attribution: process_identity, cgroup, workload and owner find the owner of a process; apportion and attribute divide
what a GPU reports; attribution_stage puts that behind the sources. Holding: slots, claims and allocations find the
holders of each slot; slot_states judges its state; holding_stage runs both at each snapshot.
"""
