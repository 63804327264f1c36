"""The first ten minutes on GPUs: what the tests hold on the CPU, on the GPUs at hand, and what they give."""
