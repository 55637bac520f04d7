"""Replaces Horovod under `python -m gradwire.run`: scripts import `horovod.torch`, `horovod.tensorflow`, `horovod.tensorflow.keras` or `horovod.keras`.
Other modules of an installed Horovod stay what they are."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
