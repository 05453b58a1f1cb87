"""How a command fails: one clear line on stderr and exit status 2, never a traceback."""


class CommandError(Exception):
    """The one line that the user reads."""
