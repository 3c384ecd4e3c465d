"""The ops of `reference` on an NVIDIA GPU: Triton kernels, compiled ahead of time, launched on CuPy arrays."""
