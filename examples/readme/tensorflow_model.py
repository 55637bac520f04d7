"""The model of docs/tensorflow.md: gradients are averaged by servers."""
import gradwire.tensorflow as gw
import keras
import numpy as np

gw.init()  # joins the cluster that `gradwire launch` has started
keras.utils.set_random_seed(gw.rank())
inputs = np.random.normal(size=(6400, 64)).astype("float32")
model = keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(10)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(gw.DistributedOptimizer(keras.optimizers.SGD(0.5)), loss)
same = gw.keras.callbacks.BroadcastGlobalVariablesCallback(0)  # all workers start with the weights of rank 0
mean = gw.keras.callbacks.MetricAverageCallback()
history = model.fit(inputs, inputs[:, :10].argmax(1), batch_size=64, epochs=3, verbose=0, callbacks=[same, mean])
print(f"rank {gw.rank()} of {gw.size()}: loss {history.history['loss'][-1]:.3f}, bias {model.get_weights()[1][0]:+.6f}")
