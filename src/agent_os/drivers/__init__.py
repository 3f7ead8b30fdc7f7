"""What the kernel drives, each behind a small interface. A driver imports abi and its own interface, nothing else."""
