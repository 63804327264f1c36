"""The contract between preprocessing/ and loader/: manifest, columns and their rules, shard files.

Does not import torch.
"""
