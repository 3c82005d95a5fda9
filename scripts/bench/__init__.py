"""One module per benchmark of ``bench.py``, and what they share: ``turns``, ``kernels``."""
