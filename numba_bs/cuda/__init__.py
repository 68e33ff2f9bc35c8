"""CUDA kernels in Python, and what starts them."""
