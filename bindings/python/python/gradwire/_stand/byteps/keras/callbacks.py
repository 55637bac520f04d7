"""Replaces `byteps.keras.callbacks`."""

from gradwire.tensorflow._unchanged import missing
from gradwire.tensorflow.keras._unchanged import BytePSScheduleCallback as LearningRateScheduleCallback
from gradwire.tensorflow.keras._unchanged import BytePSWarmupCallback as LearningRateWarmupCallback
from gradwire.tensorflow.keras.callbacks import BroadcastGlobalVariablesCallback, MetricAverageCallback

__getattr__ = missing(__name__)
