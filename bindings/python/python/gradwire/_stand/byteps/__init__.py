"""Replaces BytePS under `python -m gradwire.run`: scripts import `byteps.torch`."""
