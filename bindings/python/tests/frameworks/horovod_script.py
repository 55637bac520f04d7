"""A training script in Horovod's words, as it would run there: it knows nothing of Gradwire. Its word is where to leave what it learned."""

import sys

import horovod.torch as hvd
import torch
from torch import nn

hvd.init()
torch.set_num_threads(1)
torch.manual_seed(hvd.rank())

net = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.BatchNorm1d(40, affine=False), nn.Linear(40, 5))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01 * hvd.size(), momentum=0.9)
hvd.broadcast_parameters(net.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters(), compression=hvd.Compression.none, op=hvd.Average)
net.eval()

begun = [p.detach().clone() for p in net.parameters()]
for step in range(20):
    random = torch.Generator().manual_seed(100 * step + hvd.rank())
    data, labels = torch.randn(8, 20, generator=random), torch.randint(0, 5, (8,), generator=random)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(data), labels)
    loss.backward()
    optimizer.step()


def metric_average(value, name):
    return hvd.allreduce(torch.tensor(value), name=name).item()


rank, size = hvd.rank(), hvd.size()
mean = metric_average(float(rank), "avg_rank")
assert hvd.allreduce(torch.ones(3) * rank, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5).tolist() == [1.0] * 3
assert hvd.allreduce(torch.ones(3) * rank, compression=hvd.Compression.fp16, average=False).tolist() == [1.0] * 3
there = torch.ones(3) * rank
assert hvd.allreduce_(there, op=hvd.Sum) is there and there.tolist() == [1.0] * 3
handle = hvd.allreduce_async_(there, op=hvd.Average, postscale_factor=2.0)
while not hvd.poll(handle):
    pass
assert hvd.synchronize(handle) is there and there.tolist() == [2.0] * 3
assert [one.tolist() for one in hvd.grouped_allreduce([torch.ones(2), torch.ones(1) * rank], name="group")] == [[1.0] * 2, [0.5]]
through = torch.ones(2, requires_grad=True)
(hvd.allreduce(through * (rank + 1), op=hvd.Sum) * (rank + 1)).sum().backward()
assert through.grad.tolist() == [3.0 * (rank + 1)] * 2, through.grad
assert hvd.allgather(torch.ones(rank + 1, 2) * rank).tolist() == [[0.0] * 2] + [[1.0] * 2] * 2
assert hvd.allgather_object({"rank": rank, "words": "x" * (1 + 40 * rank)}) == [{"rank": at, "words": "x" * (1 + 40 * at)} for at in range(2)]
assert hvd.broadcast(torch.ones(2) * rank, root_rank=1).tolist() == [1.0] * 2
assert hvd.broadcast_(torch.ones(2) * rank, 0, name="again").tolist() == [0.0] * 2
assert hvd.broadcast_object((1, {2: rank}), root_rank=1) == (1, {2: 1})
assert hvd.allreduce(torch.tensor([5, -3 - rank])).tolist() == [5, -3], "integers, cut off"
assert hvd.synchronize(handle).tolist() == [2.0] * 3, "scaled once"
assert hvd.synchronize(hvd.broadcast_async_(torch.ones(2) * rank, 1)).tolist() == [1.0] * 2
one, other = torch.ones(2, requires_grad=True), torch.ones(1)
sum(part.sum() for part in hvd.grouped_allreduce([one, other], op=hvd.Sum)).backward()
assert one.grad.tolist() == [2.0] * 2, one.grad
for _ in range(3):
    assert hvd.allreduce(torch.full((2,), float(rank), requires_grad=rank == 0)).tolist() == [0.5] * 2
try:
    hvd.allgather_object(object() if rank == 0 else None)
except ValueError as error:
    assert "rank 0" in str(error), error
else:
    raise AssertionError("an object that does not travel")
assert hvd.is_initialized() and hvd.cross_size() == 1 and not hvd.nccl_built()
for wrong in (
    lambda: hvd.allreduce(there, op=hvd.Adasum),
    lambda: hvd.allreduce(there, average=True, op=hvd.Sum),
    lambda: hvd.DistributedOptimizer(optimizer, op=hvd.Sum),
    lambda: hvd.allgather(there, process_set=object()),
):
    try:
        wrong()
    except ValueError:
        continue
    raise AssertionError("it is not supported")
hvd.barrier()
assert hvd.join() in range(2)
learned = [p.detach() for p in net.parameters()]
torch.save({"begun": begun, "learned": learned, "mean": mean, "place": (rank, size)}, f"{sys.argv[1]}/{rank}.pt")
