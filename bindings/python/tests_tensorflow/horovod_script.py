"""A training script in Horovod's words, as it would run there: it knows nothing of Gradwire. Its word is where to leave what it learned."""

import sys

import horovod.tensorflow.keras as hvd
import keras
import numpy as np
from sklearn.datasets import load_digits

hvd.init()
keras.utils.set_random_seed(hvd.rank())
keras.config.set_floatx("float64")

images, labels = load_digits(return_X_y=True)
images /= 16.0
mine = slice(hvd.rank(), 1280, hvd.size())
model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(32, "tanh"), keras.layers.Dense(10)])
rate = 0.1 * hvd.size()
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.9))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
begun = []


class Begun(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if not begun:
            begun.extend(self.model.get_weights())


history = model.fit(
    images[mine],
    labels[mine],
    batch_size=16,
    epochs=4,
    shuffle=False,
    verbose=0,
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        Begun(),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=2),
    ],
)
accuracy = float(np.mean(model.predict(images[1280:], verbose=0).argmax(1) == labels[1280:]))
total = hvd.allreduce(np.float32(hvd.rank() + 1), average=False, name="total")
np.savez(
    f"{sys.argv[1]}/{hvd.rank()}.npz",
    begun=np.concatenate([one.ravel() for one in begun]),
    learned=np.concatenate([one.ravel() for one in model.get_weights()]),
    losses=history.history["loss"],
    rate=float(model.optimizer.learning_rate.numpy()),
    accuracy=accuracy,
    total=float(total),
    place=[hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()],
)
if hvd.rank() == 0:
    model.save(f"{sys.argv[1]}/model.keras")
hvd.shutdown()
