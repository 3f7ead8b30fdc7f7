"""Names of the host on the wire: text where they are UTF-8, bytes where they are not.

Linux names are bytes and Python keeps odd ones as surrogates, which msgpack text cannot hold.
"""

import os


def portable(text: str) -> str | bytes:
    """As it can travel."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return os.fsencode(text)
    return text


def native(value: str | bytes) -> str:
    """As Python holds it."""
    return os.fsdecode(value)
