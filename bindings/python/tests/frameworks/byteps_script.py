"""A training script in BytePS's words, as it would run there: it knows nothing of Gradwire. Its words are where to leave
what it learned, "optimizer" or "model", and how many workers' data it is to read alone (0: its own share)."""

import sys

import byteps.torch as bps
import torch
from byteps.torch.parallel import DistributedDataParallel
from torch import nn

bps.init()
torch.set_num_threads(1)
torch.manual_seed(bps.rank())

where, way = sys.argv[1], sys.argv[2]
net = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.BatchNorm1d(40, affine=False), nn.Linear(40, 5))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01 * bps.size(), momentum=0.9)
if way == "optimizer":
    optimizer = bps.DistributedOptimizer(
        optimizer, named_parameters=net.named_parameters(), compression=bps.Compression.none
    )
    bps.broadcast_parameters(net.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
else:
    net = DistributedDataParallel(net, device_ids=None)
net.eval() if way == "optimizer" else net.train()

begun = [p.detach().clone() for p in net.parameters()]
for step in range(20):
    random = torch.Generator().manual_seed(100 * step + bps.rank())
    data, labels = torch.randn(8, 20, generator=random), torch.randint(0, 5, (8,), generator=random)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(data), labels)
    loss.backward()
    if way == "optimizer":
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
    else:
        optimizer.step()

bps.declare("loss")
mean = bps.push_pull(loss.detach().reshape(1), average=True, name="loss")
total = torch.tensor([1.0 + bps.rank()])
handle = bps.push_pull_async(total, average=False, name="total")
while not bps.poll(handle):
    pass
total = bps.synchronize(handle)
ranks = bps.push_pull_inplace(torch.tensor([float(bps.local_rank())]), average=False, name="ranks")
torch.save(
    {
        "begun": begun,
        "learned": [p.detach() for p in net.parameters()],
        "loss": loss.item(),
        "mean": mean.item(),
        "total": total.item(),
        "place": (bps.rank(), bps.size(), bps.local_rank(), bps.local_size()),
    },
    f"{where}/{bps.rank()}.pt",
)
bps.shutdown()
