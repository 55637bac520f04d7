"""torch: allgather, reduce, barrier. Each test has one cluster for all its inputs."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

import gradwire
import gradwire.torch as gt
from gradwire.client import Client
from test_torch import on_each


def part(rank: int, turn: int) -> torch.Tensor:
    """Of another length on each rank; rank 0's is empty in turn 0."""
    return torch.arange(6 * (turn + rank), dtype=torch.float32).reshape(turn + rank, 3, 2) + 100 * rank


def test_allgather_concatenates_parts_of_any_length_and_type() -> None:
    types = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]

    def work(client: Client) -> list[torch.Tensor]:
        seen = [gt.allgather(part(client.rank, turn), client=client) for turn in (0, 3, 1, 40)]
        seen += [gt.allgather(part(client.rank, 1).to(dtype), "typed", client=client) for dtype in types]
        seen.append(gt.allgather(torch.tensor(-0.0 if client.rank else float("nan")), client=client))
        seen.append(gt.allgather(torch.ones(0, 4), client=client))
        gt.barrier(client=client)
        return seen

    expected = [torch.cat([part(rank, turn) for rank in range(2)]) for turn in (0, 3, 1, 40)]
    expected += [torch.cat([part(rank, 1) for rank in range(2)]).to(dtype) for dtype in types]
    expected += [torch.tensor([float("nan"), -0.0]), torch.ones(0, 4)]
    for seen in on_each(work):
        for mine, theirs in zip(seen, expected):
            assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
            assert repr(mine.tolist()) == repr(theirs.tolist())


def test_gradients_flow_back_to_the_worker_that_a_part_is_from() -> None:
    def work(client: Client) -> torch.Tensor:
        mine = torch.full((client.rank + 1, 2), 1.0 + client.rank, requires_grad=True)
        # A loss over all parts on each worker, as contrastive losses are.
        (gt.allgather(mine, client=client).pow(2) * (client.rank + 1)).sum().backward()
        assert mine.grad is not None
        return mine.grad

    first, second = on_each(work)
    # d/dx of (1 + 2) x².
    assert first.tolist() == [[6.0, 6.0]] and second.tolist() == [[12.0, 12.0]] * 2


def test_gradients_of_many_lengths_share_few_tensors() -> None:
    def work(client: Client) -> list[str]:
        for dtype in (torch.float32, torch.bfloat16):
            for length in (0, *range(1, 40)):
                mine = torch.ones(length + client.rank, 2, dtype=dtype, requires_grad=True)
                weight = torch.arange(2 * length + 1, dtype=dtype)[:, None]
                (gt.allgather(mine, client=client) * weight * (client.rank + 1)).sum().backward()
                begin = length * client.rank
                assert mine.grad is not None and mine.grad[:, 1].tolist() == [3.0 * at for at in range(begin, begin + length + client.rank)]
        empty = torch.ones(0, 2, requires_grad=True)
        gt.allgather(empty, client=client).sum().backward()
        assert empty.grad is not None and empty.grad.shape == (0, 2)
        return sorted(name for name in client._names.values() if "gradient" in name)

    names = [f"allgather.allgather.gradient.{element}.{1 << bits}" for element in ("f32", "bf16") for bits in (1, 3, 4, 5, 6, 7, 8)]
    assert on_each(work) == [sorted(names)] * 2


def test_reduce_changes_the_tensor_of_the_root_alone() -> None:
    def work(client: Client) -> list[Any]:
        seen = []
        for root, average, dtype in [(0, False, torch.float32), (1, True, torch.float32), (1, False, torch.int64), (0, True, torch.bfloat16)]:
            mine = torch.tensor([[1, 2], [3, 4]], dtype=dtype).t() * (client.rank + 1)
            assert gt.reduce(mine, root, average, client=client) is mine
            seen.append(mine.tolist())
        return seen

    first, second = on_each(work)
    assert first == [[[3, 9], [6, 12]], [[1, 3], [2, 4]], [[1, 3], [2, 4]], [[1.5, 4.5], [3, 6]]]
    assert second == [[[2, 6], [4, 8]], [[1.5, 4.5], [3, 6]], [[3, 9], [6, 12]], [[2, 6], [4, 8]]]


def test_what_one_worker_does_wrong_is_told_to_all_at_once() -> None:
    def work(client: Client) -> float:
        one = client.rank == 1
        wrong = [
            (r"allgather of 'a': rank 0 passed .*\(2, 3\), and rank 1 .*\(2, 4\)", lambda: gt.allgather(torch.ones(2, 3 + one), "a", client=client)),
            ("rank 1 torch.float64", lambda: gt.allgather(torch.ones(2).to(torch.float64 if one else torch.float32), client=client)),
            ("rank 1: a list is not a tensor", lambda: gt.allgather([1] if one else torch.ones(1), client=client)),  # type: ignore[arg-type]
            ("rank 1: sparse", lambda: gt.allgather(torch.ones(2).to_sparse() if one else torch.ones(2), client=client)),
            ("root_rank 0, .* root_rank 1", lambda: gt.reduce(torch.ones(2), client.rank, client=client)),
            ("rank 1: invalid root_rank 7", lambda: gt.reduce(torch.ones(2), 7 if one else 0, client=client)),
            ("rank 1: unsupported dtype", lambda: gt.reduce(torch.ones(2, dtype=torch.bool if one else torch.int32), client=client)),
        ]
        begun = time.monotonic()
        for match, call in wrong:
            with pytest.raises(gradwire.InputError, match=match):
                call()
        took = time.monotonic() - begun
        # Nothing is left behind.
        assert gt.allgather(torch.tensor([client.rank]), client=client).tolist() == [0, 1]
        return took

    assert max(on_each(work, deadlines__operation_ms=60_000)) < 30
