"""CUDA kernels in Python, and what starts them: a guide to reading them.

**Where to begin.** ``elementwise_simt.py``: one thread per element, nothing shared.
Then ``matmul_dsd_simt.py`` (dense = sparse @ dense): work items, tiles staged in shared
memory, register tiles, thread groups. ``matmul_sdd_simt.py`` (the sampled product) is
the same walk along another axis. ``sum_partials_simt.py`` finishes both where a long
sum was cut. ``gather_blocks_simt.py`` copies.

**The ladder.** Kernels of a product come as rungs, one file a rung, each with what is
new against the one below; all compute the same. ``choose`` takes the first that serves
a call, from the top; ``variant=`` names one.

- ``*_simt.py``: threads multiply. Any dtype, block size and GPU.
- ``*_mma.py``: a warp multiplies 16 by 8 by 16 in one instruction (``mma.sync``), out
  of registers that ``ldmatrix`` fills; what comes next from global memory is on its way
  meanwhile (``cp.async``). 16-bit floats, float64, float32 with ``precision="tf32"`` or
  ``"tf32x3"``; compute capability 8.0. ``tiles_mma.py`` is what its two files share.
- ``*_wgmma.py``: four warps multiply 64 rows by up to 256 columns straight out of
  shared memory (``wgmma``), which one instruction filled (TMA); warps that load and
  warps that multiply meet at barriers in memory. 16-bit floats; compute capability 9.0.

What each rung gains: TFLOP/s of stored blocks on an H200, bfloat16, 8192 cubed, density
0.1, where the dense product runs at 830 to 890.

====== =============== =============== =============== ===============
block  16              32              64              128
------ --------------- --------------- --------------- ---------------
rung   forward   dW    forward   dW    forward   dW    forward   dW
====== ========= ===== ========= ===== ========= ===== ========= =====
simt   27        21    28        28    36        32    36        33
mma    89        47    125       86    210       176   240       262
wgmma  177       135   314       242   454       375   567       549
====== ========= ===== ========= ===== ========= ===== ========= =====

How much a single idea is worth, and what was tried and lost, stands where it is used.

**A kernel file** holds one kernel and reads from top to bottom:

1. its docstring: what one CTA owns; then ``grid``, ``threads``, ``shared``, ``reads``;
2. ``launch(config, plan, arrays, ..., stream)`` turns constants that ``choose``
   picked into a grid and starts the kernel; it neither checks nor allocates;
3. ``_make_kernel``: its arguments, and what it computes of them, are known when the
   kernel is compiled: sizes in capitals, dtypes and switches beside them. A Python
   ``if`` on one of them leaves one branch, a ``range`` loop over one is unrolled, a
   local array indexed by such loops lives in registers;
4. the kernel: who am I, tiles, walk (stage, barrier, multiply, barrier), write. Behind
   each ``syncthreads`` stands what is true after it.

**Names.** "Block" is a block of the matrix; a thread block is a CTA. ``TILE_M`` is a
size of a CTA, ``THREAD_M`` of a thread, ``THREADS_M`` a count of threads. ``m``,
``n``, ``k`` are places in a tile, ``r``, ``c`` in a block. An ``entry`` is a place in
the lookup tables of ``plan.py``, a ``slot`` one in the workspace of partial sums (-1:
none). Of the leading axes, ``batch`` is kept, ``summed`` is added up inside of the
kernel and ``heads`` counts the layouts of a stack (``leading.py``). ``a_smem`` is
shared memory, ``a_reg`` registers, plain ``a`` global memory, ``acc`` the running sum.

**One body for all dtypes.** Values are widened to the accumulation dtype when they are
staged and rounded once when the result is written, by functions that ``tiles.py`` makes
for a pair of dtypes. bfloat16 travels as 16-bit words.

**Strides say everything.** ``A.T @ x`` is the kernel of ``A @ x`` on the plan of
columns, with the last two axes of the values swapped; ``x @ A`` is it on ``x.T``. The
constants ``..._ALONG_...`` tell a kernel only in which direction neighbours in memory
lie, so that neighbouring threads can read them.

**Habits of the kernels**, because of how Numba compiles:

- ``index(x)`` and ``u64(x)`` around an index: a signed index may be negative, which
  costs two instructions an axis; these say that it is not.
- A tile lies in shared memory as in global memory, along k or across
  (``tiles.staged``), and a thread multiplies ``K_RUN`` neighbouring k at once: so both
  are read by whole vectors, whichever way an operand lies.
- ``while k < TILE_K`` where a loop must not be unrolled, ``range`` where it must.
- ``device`` functions inside of a maker are inlined where they are called: they name
  a piece of the kernel, they cost nothing. ``inlined_late`` ones are inlined by LLVM:
  for code that is called so often that Numba would take a minute.
- Sums are in registers only if each has a fixed index: ``tiles.in_turn`` unrolls what a
  loop would not.

**What is sure.** No atomics: sums are added in one fixed order, so the same call gives
the same bits. No early return before a barrier. Nothing past the end of an operand is
read; what pads a tile is a copy whose result is not written, or zero.

**Below the kernels.** ``compiler.py`` is the door to Numba (casts, ``maker``, ``jit``,
compiling without a GPU), ``launch.py`` starts a kernel, ``upload.py`` keeps lookup
tables on the device, ``ptx.py`` declares instructions that Numba lacks and
``ptx_emulated.py`` emulates them, ``fragments.py`` says which lane holds which element
and how shared memory is swizzled, ``tensor_map.py`` tells the copy engine about an
array, ``simulator.py`` runs it all as Python threads: put a
``print`` or a breakpoint into any kernel, set ``NUMBA_ENABLE_CUDASIM=1``, and watch::

    import numpy as np, numba_bs as bs
    from numba import cuda
    a = bs.bsr_array(np.eye(4), blocksize=2).to_device()
    print((a @ cuda.to_device(np.ones((4, 3)))).copy_to_host())
"""
