"""Forks of a process that has computed: they lack its threads, for which OpenMP and others would wait forever."""

import os

from dlrm_app.errors import DlrmError, Problem

_computing: list[int] = []
"""The process in which libraries run threads; empty until the first job, or in a new process."""


def is_fork() -> bool:
    """True in a process that was forked from one that has computed."""
    return bool(_computing) and _computing[0] != os.getpid()


def refuse_fork() -> None:
    """Call it before any computing. Raises DlrmError in a process that was forked from one that has computed."""
    if not _computing:
        _computing.append(os.getpid())
    if is_fork():
        rule = "was forked from one that had computed already, and lacks its threads, so it cannot compute"
        cure = (
            "load the model only after the fork (gunicorn without --preload), or start processes with spawn: "
            'multiprocessing.get_context("spawn"), DataLoader(multiprocessing_context="spawn")'
        )
        raise DlrmError(Problem("this process", rule, cure))
