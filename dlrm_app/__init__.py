"""Train deep learning recommendation models with TorchRec. Importing this package imports nothing else."""

__version__ = "0.1.0"
