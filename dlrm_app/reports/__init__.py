"""HTML pages, made from the files that jobs write. No job imports this package, and it does not import torch."""
