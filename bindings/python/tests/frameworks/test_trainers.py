"""Lightning and Accelerate, the real packages: two workers learn what one process with the data of both learns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import gradwire
import gradwire.torch as gt
from gradwire.client import Client
from test_torch import assert_same, copied, model

BATCH = 4


def samples() -> TensorDataset:
    random = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(32, 30, generator=random), torch.randint(0, 10, (32,), generator=random))


def share(rank: int, epoch: int, shuffles: bool) -> list[int]:
    sampler: DistributedSampler[Any] = DistributedSampler(samples(), 2, rank, shuffle=shuffles)
    sampler.set_epoch(epoch)
    return list(sampler)


def expected(accumulate: int, shuffles: bool) -> nn.Module:
    """One process: each batch has those of both workers, in the order of the sampler."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for epoch in range(2):
        shares = [share(rank, epoch, shuffles) for rank in range(2)]
        for step, at in enumerate(range(0, 16, BATCH)):
            if step % accumulate == 0:
                optimizer.zero_grad()
            batches = [samples()[one[at : at + BATCH]] for one in shares]
            (sum(nn.functional.cross_entropy(net(data), labels) for data, labels in batches) / 2 / accumulate).backward()
            if step % accumulate == accumulate - 1:
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                optimizer.step()
    return net


def lightning_worker(client: Client, accumulate: int) -> nn.Module:
    """For `launch`."""
    import lightning

    from gradwire.torch.lightning import GradwireStrategy

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model(client.rank)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, _: int) -> None:
            self.log("rank", float(client.rank), sync_dist=True)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)

    module, strategy = Module(), GradwireStrategy(client=client)
    quiet: dict[str, Any] = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(
        strategy=strategy, accelerator="cpu", devices=1, max_epochs=2, accumulate_grad_batches=accumulate, gradient_clip_val=0.5, **quiet
    )
    trainer.fit(module, DataLoader(samples(), BATCH, shuffle=False), DataLoader(samples(), BATCH))
    assert trainer.callback_metrics["rank"].item() == 0.5 and trainer.world_size == 2
    assert strategy.all_gather(torch.tensor([client.rank])).tolist() == [[0], [1]]
    assert strategy.reduce_boolean_decision(client.rank == 1, all=False) and not strategy.reduce_boolean_decision(client.rank == 1)
    return copied(module.net)


def accelerate_worker(client: Client, accumulate: int) -> nn.Module:
    """For `launch`."""
    from accelerate import Accelerator

    net = model(client.rank)
    wrapped = gt.DistributedDataParallel(net, client=client)
    sampler: DistributedSampler[Any] = DistributedSampler(samples(), client.workers, client.rank, shuffle=False)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    ready, optimizer, loader = accelerator.prepare(
        wrapped, torch.optim.SGD(net.parameters(), 0.1, momentum=0.9), DataLoader(samples(), BATCH, sampler=sampler)
    )
    for _ in range(2):
        for data, labels in loader:
            with accelerator.accumulate(ready):
                accelerator.backward(nn.functional.cross_entropy(ready(data), labels))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(ready.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
    return copied(net)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("package", ["lightning", "accelerate"])
def test_trainers_learn_what_one_process_learns(package: str, accumulate: int) -> None:
    pytest.importorskip(package)
    work = {"lightning": lightning_worker, "accelerate": accelerate_worker}[package]
    for net in gradwire.launch(work, accumulate, servers=1, workers=2):
        # Lightning shuffles the data that it distributes for training, with seed 0.
        assert_same(net, expected(accumulate, shuffles=package == "lightning"))
