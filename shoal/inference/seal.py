"""A checksum at the end of an exported file, so that one flipped bit in a weight is found before it is played.

ONNX files are protocol buffers, in which a field may follow at the end: the seal is one more entry of the model's
metadata, `shoal_sha256`, and other programs read the file as before. It guards against damage, not against malice.
"""

import hashlib

_KEY = b"shoal_sha256"
_DIGITS = 64
_BEFORE = bytes((0x72, len(_KEY) + _DIGITS + 4, 0x0A, len(_KEY))) + _KEY + bytes((0x12, _DIGITS))
"""Field 14, metadata_props, with a key and a value of these lengths."""


def sealed(model: bytes) -> bytes:
    """The file with the checksum of all that is before it."""
    return model + _BEFORE + _digest(model)


def intact(content: bytes) -> bool:
    """Whether a file is as it was sealed; one without a seal is taken as it is."""
    place = len(content) - len(_BEFORE) - _DIGITS
    if content[place:-_DIGITS] != _BEFORE:
        return _KEY not in content  # something was put behind it
    return content[-_DIGITS:] == _digest(content[:place])


def _digest(model: bytes) -> bytes:
    return hashlib.sha256(model).hexdigest().encode()
