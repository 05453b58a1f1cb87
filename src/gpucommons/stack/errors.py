"""The error of the stack that is shown to the operator."""


class StackError(Exception):
    """What failed, why, and what to do, in one line per problem."""
