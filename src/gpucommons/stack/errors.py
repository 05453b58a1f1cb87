"""What an admin is told when the stack cannot do what was asked."""


class StackError(Exception):
    """One clear text that says what to do; it may hold one line per problem."""
