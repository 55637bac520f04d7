"""A linear model in torch: each worker trains on its own data, gradients are averaged over all workers."""
import gradwire.torch as gw
import torch

gw.init()  # joins the cluster that `gradwire launch` has started
torch.manual_seed(gw.rank())
model = torch.nn.Linear(64, 10)
gw.broadcast_parameters(model.state_dict(), root_rank=0)  # all workers start with the weights of rank 0
optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.5), model.named_parameters())
for _ in range(100):
    inputs = torch.randn(128, 64)
    loss = torch.nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1))
    loss.backward()
    optimizer.step()  # waits for the averaged gradients
    optimizer.zero_grad()
print(f"rank {gw.rank()} of {gw.size()}: loss {loss.item():.3f}, bias {model.bias[0].item():+.6f}")
