"""What the quotas of `[lease_quotas]` permit to a user. Pure."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from gpucommons.leases.policy.values import LeaseQuota, UserFacts

# Parts of a GPU are sums of sevenths.
_ROUNDING = 1e-6


def exceeded(
    quotas: Iterable[LeaseQuota], user: str, gpus: float, held: Mapping[str, float], facts: UserFacts
) -> str | None:
    """The sentence of the first quota that `gpus` more would exceed; None if none does. `held` is by user name."""
    for quota in quotas:
        users = _users(quota, user, facts)
        if users is None:
            continue
        whose = f"group {quota.group}" if quota.group else f"user {user}"
        has = sum(held.get(each, 0.0) for each in users)
        if quota.gpus is not None and has + gpus > quota.gpus + _ROUNDING:
            return f"{whose} has {has:g} of {quota.gpus:g} GPUs"
        spent = None if facts.hours is None else sum(facts.hours.get(each, 0.0) for each in users)
        if quota.hours is not None and spent is not None and spent >= quota.hours:
            return f"{whose} has used {spent:.1f} of {quota.hours:g} GPU-hours in 30 days"
    return None


def sm_quota(quotas: Iterable[LeaseQuota], user: str, facts: UserFacts) -> int | None:
    """The part of a GPU that a lease of this user may use under MPS, in percent; None: no limit."""
    limits = [
        quota.sm_percent for quota in quotas if quota.sm_percent is not None and _users(quota, user, facts) is not None
    ]
    return min(limits, default=None)


def _users(quota: LeaseQuota, user: str, facts: UserFacts) -> frozenset[str] | None:
    """The users who share the quota; None if it does not apply to `user`."""
    if quota.group:
        members = facts.members.get(quota.group, frozenset())
        return members if user in members else None
    return frozenset({user}) if fnmatchcase(user, quota.user) else None
