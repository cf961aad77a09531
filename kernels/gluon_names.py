"""What the Hopper kernels take from Gluon, under one name for every Triton from 3.6 to 3.9.

Triton 3.9 renamed the copies of the tensor memory accelerator (TMA) and gave its reduction a name; 3.6 has that one in
its builder only. Named barriers (PTX ``bar.sync`` and ``bar.arrive`` with a number) have no name in either: inline PTX.
Device functions, for use inside ``@gluon.jit``:

    tma_load(descriptor, coordinates, barrier, buffer)     global to shared; `barrier` counts the bytes
    tma_store(descriptor, coordinates, buffer)             shared to global, clipped at the tensor's end
    tma_reduce_add(descriptor, coordinates, buffer)        shared added to global, element by element
    tma_store_wait(pending)                                until at most `pending` stores or reductions still read
    reinterpret(buffer, dtype, shape, layout)              the same shared memory seen as another buffer
    partition_barrier()                                    all threads of the partition that runs it
    named_sync(NUMBER, THREADS), named_arrive(NUMBER, THREADS)

Triton keeps the numbers from 0 for itself, one a partition and one more: use NAMED_BARRIERS.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource, constexpr_function
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

__all__ = ["DTYPES", "NAMED_BARRIERS", "GluonASTSource", "TensorDescriptor", "constexpr_function", "fence_async_shared",
           "gl", "gluon", "mbarrier", "named_arrive", "named_sync", "partition_barrier", "reinterpret", "tma_load",
           "tma_reduce_add", "tma_store", "tma_store_wait", "warpgroup_mma", "warpgroup_mma_wait"]

DTYPES = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16, torch.float32: gl.float32,
          torch.float8_e4m3fn: gl.float8e4nv}
NAMED_BARRIERS = range(10, 16)  # PTX has 16; a kernel of up to five partitions leaves these free

tma_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
tma_store = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global
tma_store_wait = tma.store_wait
partition_barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier

if hasattr(tma, "async_atomic_add"):
    tma_reduce_add = tma.async_atomic_add
else:
    @builtin
    def tma_reduce_add(tensor_desc, coord, src, _semantic=None):
        """Add a tile of shared memory to global memory; 3.6 has the operation without a name."""
        from triton._C.libtriton import ir

        coord = _semantic._convert_to_ir_values(coord, require_i64=False)
        _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor_desc.handle, coord, src.handle)


@builtin
def reinterpret(buffer, dtype, shape, layout, _semantic=None):
    """The same shared memory seen with another type, shape and layout; 3.6 has the method under another name."""
    return getattr(buffer, "reinterpret", getattr(buffer, "_reinterpret", None))(dtype, shape, layout,
                                                                                 _semantic=_semantic)


@constexpr_function
def _barrier_code(verb, number, threads):
    return f"bar.{verb} {number}, {threads}; mov.b32 $0, 0;"


@gluon.jit
def _barrier(VERB: gl.constexpr, NUMBER: gl.constexpr, THREADS: gl.constexpr):
    # "memory": no load or store of shared memory moves across
    gl.inline_asm_elementwise(_barrier_code(VERB, NUMBER, THREADS), "=r,~{memory}", [], dtype=gl.int32, is_pure=False,
                              pack=1)


@gluon.jit
def named_sync(NUMBER: gl.constexpr, THREADS: gl.constexpr):
    """Wait at barrier NUMBER until THREADS threads have come, those that wait and those that `named_arrive` counted."""
    _barrier("sync", NUMBER, THREADS)


@gluon.jit
def named_arrive(NUMBER: gl.constexpr, THREADS: gl.constexpr):
    """Count this partition's threads at barrier NUMBER without waiting."""
    _barrier("arrive", NUMBER, THREADS)
