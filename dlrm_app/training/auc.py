"""The exact area under the ROC curve, of one process's scores or of scores spread over all ranks."""

import torch
import torch.distributed as dist

from dlrm_app.training.collectives import gather, num_ranks, own_rank, total

SAMPLES_PER_RANK = 1024
CHUNK = 1 << 20
"""Scores looked up at a time: bounds the memory of their int64 places."""


def roc_auc(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """The probability that a random positive scores above a random negative, a tie counting half.

    ``logits`` [n] float32 without NaN, ``labels`` [n] bool. With a process group every rank calls this with
    its own rows, any number of them, and gets the same value; nan when the rows of all are of one class.

    The Mann-Whitney statistic (Hanley & McNeil 1982) counted in int64, so that only the last division rounds
    (positives times negatives must stay below 2^62). Ranks exchange scores by range of score, as a sample
    sort does: each sorts and holds about its share of all rows, or more where very many scores are equal,
    since equal ones meet on one rank.
    """
    positives, negatives = _sort(logits[labels]), _sort(logits[~labels])
    if num_ranks() > 1:
        splitters = _splitters(logits)
        positives, negatives = (_sort(_own_range(scores, splitters)) for scores in (positives, negatives))
    counts = gather(torch.tensor([positives.numel(), negatives.numel()], device=logits.device))
    negatives_below = int(counts[: own_rank(), 1].sum())
    own_wins = _doubled_wins(positives, negatives) + 2 * negatives_below * positives.numel()
    wins = int(total(torch.tensor(own_wins, device=logits.device)))
    num_positives, num_negatives = counts.sum(0).tolist()
    pairs = num_positives * num_negatives
    return wins / (2 * pairs) if pairs else float("nan")


def _doubled_wins(positives: torch.Tensor, negatives: torch.Tensor) -> int:
    """Over all pairs: 2 where the positive scores higher, 1 for a tie. Both sorted."""
    wins = 0
    for some in torch.split(positives, CHUNK):
        wins += int(torch.searchsorted(negatives, some).sum())
        wins += int(torch.searchsorted(negatives, some, right=True).sum())
    return wins


def _sort(scores: torch.Tensor) -> torch.Tensor:
    """Sorts ``scores``, on CPU in place."""
    if scores.device.type != "cpu":
        return scores.sort().values
    # torch.sort carries int64 places along: 3 times the memory and 20 times the time of numpy's
    scores.numpy().sort()
    return scores


def _splitters(logits: torch.Tensor) -> torch.Tensor:
    """[R - 1] scores, the same on every rank, that cut all rows into R ranges of about equal size."""
    sample = torch.full((SAMPLES_PER_RANK,), float("nan"), device=logits.device)
    if logits.numel():
        places = torch.linspace(0, logits.numel() - 1, SAMPLES_PER_RANK, dtype=torch.float64)
        sample = logits[places.long().to(logits.device)]
    samples = gather(sample).flatten()
    samples = samples[~samples.isnan()].sort().values  # none from ranks without rows
    if not samples.numel():
        return torch.zeros(num_ranks() - 1, device=logits.device)
    return samples[torch.arange(1, num_ranks(), device=logits.device) * samples.numel() // num_ranks()]


def _own_range(scores: torch.Tensor, splitters: torch.Tensor) -> torch.Tensor:
    """The scores of all ranks in this rank's range; the rest of ``scores``, sorted, goes to the others."""
    cuts = torch.searchsorted(scores, splitters)
    sizes = torch.tensor([0, *cuts.tolist(), scores.numel()], device=scores.device).diff()
    received_sizes = torch.empty_like(sizes)
    dist.all_to_all_single(received_sizes, sizes)
    received = scores.new_empty(int(received_sizes.sum()))
    dist.all_to_all_single(received, scores, received_sizes.tolist(), sizes.tolist())
    return received
