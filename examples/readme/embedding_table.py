"""An embedding table: servers create rows on first use; workers pull and push only the rows of their batch."""
import gradwire
import numpy as np

with gradwire.connect() as client:  # joins the cluster that `gradwire launch` has started
    users = client.table("users", 64, gradwire.AdaGrad(0.1), initial=gradwire.Uniform(-0.1, 0.1, seed=7))
    random = np.random.default_rng(client.rank)
    for step in range(200):
        ids = random.zipf(1.5, size=256) * 1_000_003  # any 64-bit ids, repeated ids are allowed
        rows = users.pull_rows(ids).wait()  # float32, shape (256, 64)
        loss = np.mean((rows - 1.0) ** 2) / 2
        users.push_rows(ids, rows - 1.0).wait()  # the servers apply AdaGrad to each row
    print(f"rank {client.rank} of {client.workers}: loss {loss:.3f}")
