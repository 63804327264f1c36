"""Sorted scores of both classes, spread over the ranks by range: what every measure of order needs."""

from dataclasses import dataclass

import torch

from dlrm_app.distributed.collectives import all_gather_stacked, all_to_all, current_rank, num_ranks

SAMPLES_PER_RANK = 1024
CHUNK = 1 << 20
"""Scores looked up at a time: bounds the memory of their int64 positions."""


@dataclass(frozen=True)
class Ranking:
    """This rank's range of all ranks' scores, each class sorted; a later rank's scores are higher.

    ``counts`` [R, 2] int64: the positives and negatives in every rank's range.
    """

    positives: torch.Tensor
    negatives: torch.Tensor
    counts: torch.Tensor

    @property
    def totals(self) -> tuple[int, int]:
        """Positives and negatives of all ranks."""
        positives, negatives = self.counts.sum(0).tolist()
        return positives, negatives

    @property
    def below(self) -> tuple[int, int]:
        """Positives and negatives that score below all of this rank's."""
        positives, negatives = self.counts[: current_rank()].sum(0).tolist()
        return positives, negatives


def rank_scores(logits: torch.Tensor, labels: torch.Tensor) -> Ranking:
    """Ranks ``logits`` [n] float32 without NaN by ``labels`` [n] bool.

    With a process group every rank calls this with its own rows, any number of them. Ranks exchange scores by
    range of score, as a sample sort does: each sorts and holds about its share of all rows, or more where very
    many scores are equal, since equal ones meet on one rank.
    """
    positives, negatives = sort(logits[labels]), sort(logits[~labels])
    if num_ranks() > 1:
        splitters = find_splitters(logits)
        positives, negatives = (
            sort(all_to_all(scores, cut(scores, splitters))[0]) for scores in (positives, negatives)
        )
    counts = all_gather_stacked(torch.tensor([positives.numel(), negatives.numel()], device=logits.device))
    return Ranking(positives, negatives, counts)


def sort(scores: torch.Tensor) -> torch.Tensor:
    """Sorts ``scores``, on CPU in place."""
    if scores.device.type != "cpu":
        return scores.sort().values
    # torch.sort carries int64 indices along: 3 times the memory and 20 times the time of numpy's
    scores.numpy().sort()
    return scores


def find_splitters(logits: torch.Tensor) -> torch.Tensor:
    """[R - 1] scores, the same on every rank, that cut all rows into R ranges of about equal size."""
    sample = torch.full((SAMPLES_PER_RANK,), float("nan"), device=logits.device)
    if logits.numel():
        indices = torch.linspace(0, logits.numel() - 1, SAMPLES_PER_RANK, dtype=torch.float64)
        sample = logits[indices.long().to(logits.device)]
    samples = all_gather_stacked(sample).flatten()
    samples = samples[~samples.isnan()].sort().values  # none from ranks without rows
    if not samples.numel():
        return torch.zeros(num_ranks() - 1, device=logits.device)
    return samples[torch.arange(1, num_ranks(), device=logits.device) * samples.numel() // num_ranks()]


def cut(scores: torch.Tensor, splitters: torch.Tensor) -> torch.Tensor:
    """[R] how many of ``scores``, sorted, fall into each rank's range."""
    cuts = torch.searchsorted(scores, splitters)
    return torch.tensor([0, *cuts.tolist(), scores.numel()], device=scores.device).diff()


def doubled_wins(others: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """[n] int64: for each of ``scores``, 2 for every one of ``others`` (sorted) below it and 1 for a tie."""
    return torch.searchsorted(others, scores) + torch.searchsorted(others, scores, right=True)
