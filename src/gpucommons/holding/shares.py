"""Division of one slot among its holders: two owners of one slot are billed a half each. Pure."""

from collections.abc import Sequence
from fractions import Fraction

from gpucommons.model.usage import WHOLE_SHARE


def divide(claims: Sequence[Fraction]) -> list[int]:
    """The share of each claim, in billionths of the slot.

    Claims that fit are granted unchanged and leave the rest free. Claims that exceed the slot in sum are reduced in
    proportion and fill it completely.
    """
    if all(claim == 1 for claim in claims):
        # The usual case, without fractions: a slot may have hundreds of holders.
        return [(i + 1) * WHOLE_SHARE // len(claims) - i * WHOLE_SHARE // len(claims) for i in range(len(claims))]
    whole = max(sum(claims, Fraction(0)), Fraction(1))
    shares = []
    so_far, granted = Fraction(0), 0
    for claim in claims:
        so_far += claim
        up_to = int(so_far * WHOLE_SHARE / whole)
        shares.append(up_to - granted)
        granted = up_to
    return shares
