"""Servers that update parameters by optimizers of MXNet or torch: `gradwire serve --updates my_rules.py`.

The file registers the classes that workers may name:

    import gradwire.serve
    import mxnet as mx

    gradwire.serve.register(mx.optimizer.DCASGD)

Workers send the name of a class and numbers, and never code.
"""

from __future__ import annotations

from ._kinds import register

__all__ = ["register"]
