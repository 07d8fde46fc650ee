"""Benchmarks of fastconv against PyTorch's own convolutions: `python -m bench --help`, bench/README.md."""
