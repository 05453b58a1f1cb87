"""Who uses what of each GPU: rules, their cache and the sums. Knows no socket and no driver."""
