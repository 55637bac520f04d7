"""Replaces BytePS under `python -m gradwire.run`: scripts import `byteps.torch`, `byteps.tensorflow` or `byteps.keras`."""
