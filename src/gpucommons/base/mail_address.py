"""Email addresses as this project accepts them: plain ones, without a display name, comments or quotes. Pure."""

import re
from typing import Final

USER_PLACE: Final = "{user}"
_ADDRESS: Final = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")


def is_mail_address(text: str) -> bool:
    """Nothing in it can end a header or add a recipient."""
    return _ADDRESS.fullmatch(text) is not None and USER_PLACE not in text


def user_address(pattern: str, user: str) -> str:
    """The address of a user; empty where that would be no address."""
    address = pattern.replace(USER_PLACE, user) if user else "" if USER_PLACE in pattern else pattern
    return address if is_mail_address(address) else ""
