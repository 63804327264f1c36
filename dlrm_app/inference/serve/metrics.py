"""What Prometheus is told: requests by status and their time, rows by batch, the queue, the export that is served."""

from collections.abc import Callable
from pathlib import Path
from resource import getpagesize

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from dlrm_app.inference.serve.scorer import Scorer

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)


class ServerMetrics:
    """The numbers of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = Counter("dlrm_requests", "Requests, by status", ["status"], registry=self._registry)
        self._seconds = Histogram(
            "dlrm_request_seconds", "Time to an answer", buckets=_SECONDS, registry=self._registry
        )
        self._batch_rows = Histogram(
            "dlrm_batch_rows", "Rows scored at once", buckets=_ROWS, registry=self._registry
        )
        self._swaps = Counter("dlrm_swaps", "New exports, by outcome", ["outcome"], registry=self._registry)
        self._ends = Counter(
            "dlrm_scorer_ends", "Scoring processes that ended by themselves", registry=self._registry
        )
        self._memory = Gauge(
            "dlrm_scorer_resident_bytes", "Memory of the scoring process", registry=self._registry
        )
        self._queued_rows = Gauge("dlrm_queued_rows", "Rows that wait", registry=self._registry)
        self._export = Gauge(
            "dlrm_export", "1 for the export that is served", ["identity"], registry=self._registry
        )

    def answered(self, status: int, seconds: float) -> None:
        """A request had its answer after ``seconds``."""
        self._requests.labels(status).inc()
        self._seconds.observe(seconds)

    def scored(self, rows: int) -> None:
        """A batch goes to the model."""
        self._batch_rows.observe(rows)

    def swapped(self, is_taken: bool) -> None:
        """Another export was found."""
        self._swaps.labels("taken" if is_taken else "refused").inc()

    def scorer_ended(self) -> None:
        """The process that scores ended, and nobody had told it to."""
        self._ends.inc()

    def watch(self, scorer: Callable[[], Scorer]) -> None:
        """Asks the one that scores now whenever the page is read."""
        self._scorer = scorer
        self._queued_rows.set_function(lambda: scorer().queued_rows)
        self._memory.set_function(lambda: resident_bytes(scorer().pid))

    def page(self) -> bytes:
        """The text that Prometheus reads."""
        self._export.clear()
        self._export.labels(self._scorer().served.identity).set(1)
        return generate_latest(self._registry)


def resident_bytes(pid: int) -> int:
    """The memory of a process; 0 where it has ended, or the system does not tell."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * getpagesize()
    except (OSError, IndexError):
        return 0
