"""Which GPUs the wheels have kernels for, by compute capability. Standard library only."""

KERNELS = ((8, 0), (9, 0), (10, 0))
"""fbgemm-gpu 1.8.0's wheels hold machine code for sm_80, sm_90a and sm_100a, and no PTX to compile for others."""
ANY_MINOR = (8,)
"""Code for x.0 also runs on x.1 to x.9 (CUDA C++ programming guide, binary compatibility), but not sm_90a's and sm_100a's."""


def has_kernels(capability: tuple[int, int]) -> bool:
    """Whether fbgemm's wheels run on a GPU of this compute capability."""
    return capability in KERNELS or capability[0] in ANY_MINOR


def explain_missing(capability: tuple[int, int]) -> str:
    """What to say of a GPU without kernels."""
    major, minor = capability
    return (
        f"compute capability {major}.{minor}: fbgemm-gpu's wheels have kernels for 8.x (A100, A10, L4, L40), 9.0 (H100, H200) "
        "and 10.0 (B200) alone"
    )
