"""Attribution of GPU use to owners: rules, their cache and the sums. Opens no socket and calls no driver."""
