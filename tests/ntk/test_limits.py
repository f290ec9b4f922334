"""How much the engine computes at a time."""

import torch

from labelahead.ntk import limits


def test_cpu_uses_a_fixed_memory_and_plain_buffers():
    cpu = torch.device("cpu")
    assert limits.working_memory(cpu) == 2 << 30
    assert limits.buffer_scale(cpu) == 1


def test_buffer_sizes_apply_inside_the_with_block_only():
    small = limits.BufferSizes(piece_bytes=1)
    with limits.use_buffer_sizes(small):
        assert limits.buffer_sizes() is small
    assert limits.buffer_sizes() == limits.BufferSizes()


def test_gpu_uses_half_of_its_free_memory_but_never_nothing(monkeypatch):
    """The driver is replaced: there is no GPU here."""
    gpu, free = torch.device("cuda"), [10 << 30, 4 << 30]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[0], 16 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: free[1])
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2 << 30)
    assert limits.working_memory(gpu) == 6 << 30  # of 10 GiB free and 2 GiB cached
    free[:] = [0, 2 << 30]
    assert limits.working_memory(gpu) == 64 << 20
    assert limits.buffer_scale(gpu) == 16
