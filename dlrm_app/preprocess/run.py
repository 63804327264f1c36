"""dlrm-preprocess: the passes of one run, in order, each going on where an earlier run stopped."""

import errno
import json
import logging
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from dlrm_app.config.preprocess import PreprocessConfig
from dlrm_app.data.manifest import MANIFEST, Manifest, read_manifest
from dlrm_app.errors import ConfigError, DlrmError
from dlrm_app.files import write_json
from dlrm_app.preprocess.columns import dense_columns, hash_columns, per_column, vocab_columns
from dlrm_app.preprocess.encode_pass import EncodeUnits
from dlrm_app.preprocess.executor import Executor, LocalExecutor, Single, Work
from dlrm_app.preprocess.finish import finish, refuse_if_many_rejects
from dlrm_app.preprocess.journal import WORK, Journal, locked, open_journal
from dlrm_app.preprocess.passes import CountLines
from dlrm_app.preprocess.plan import Cuts, Plan, cut_lines, identity, make_plan, refuse_other_config
from dlrm_app.preprocess.report import report
from dlrm_app.preprocess.source import Source, find_sources, refuse_other_input
from dlrm_app.preprocess.spec import read_spec
from dlrm_app.preprocess.units import TextFeed
from dlrm_app.preprocess.vocabulary import AddUp, CountKeys, refuse_if_too_large

logger = logging.getLogger(__name__)


def preprocess(config: PreprocessConfig) -> Manifest:
    """Makes the dataset that ``config`` describes, or goes on with it; gives its manifest.

    Raises ConfigError for what cannot work, DataError for damaged input, DlrmError for a full disk.
    """
    spec = read_spec(config.dataset)
    sources = find_sources(config.input)
    plan = make_plan(config, spec, sources)
    finished = _finished(config, plan)
    if finished is not None:
        return finished
    start = time.perf_counter()
    with locked(plan.output):
        _open_work(config, plan)
        try:
            manifest = _run(config, plan, LocalExecutor(config.threads))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise DlrmError(
                f"no room left on the disk of output={plan.output}: free some, then run the same command again; "
                "it goes on where it stopped"
            ) from error
        shutil.rmtree(plan.output / WORK)
    report(manifest, time.perf_counter() - start)
    return manifest


def _finished(config: PreprocessConfig, plan: Plan) -> Manifest | None:
    """The manifest if OUTPUT holds this very dataset; refuses to touch another one."""
    if not (plan.output / MANIFEST).exists():
        if plan.output.exists() and (not plan.output.is_dir() or _has_strangers(plan.output)):
            raise ConfigError([f"output={plan.output} exists and is no dataset folder: give another name"])
        return None
    manifest = read_manifest(plan.output)
    refuse_other_config(manifest.config, identity(config), plan.output, "a finished dataset")
    before = [(source.path, source.split, source.bytes) for source in manifest.sources]
    if before != [(source.path, source.split, source.bytes) for source in plan.sources]:
        raise ConfigError(
            [
                f"output={plan.output} holds a finished dataset of other input files: give another output=, or delete it"
            ]
        )
    logger.info(f"{plan.output} is finished already; nothing to do")
    report(manifest, None)
    return manifest


def _has_strangers(output: Path) -> bool:
    return any(output.iterdir()) and not (output / WORK).is_dir()


def _open_work(config: PreprocessConfig, plan: Plan) -> None:
    """Begins OUTPUT/.work, or makes sure that the one there is of this very run."""
    path = plan.output / WORK / "plan.json"
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        refuse_other_config(
            before["config"], json.loads(json.dumps(identity(config))), plan.output, "an unfinished dataset"
        )
        refuse_other_input([Source(**source) for source in before["sources"]], plan.sources, plan.output)
        logger.info(f"{plan.output} is unfinished: going on where it stopped")
    else:
        write_json(path, {"config": identity(config), "sources": [asdict(source) for source in plan.sources]})


def _run(config: PreprocessConfig, plan: Plan, executor: Executor) -> Manifest:
    cuts = None
    if plan.fractions:
        journal = open_journal(plan.output, "lines")
        work = CountLines(plan, journal)
        results = run_pass("counting lines", work, journal, plan, executor, {"train"})
        lines = {(r["source"], r["unit"]): r["lines"] for r in results}
        cuts = cut_lines(lines, plan.fractions)
    dense = dense_columns(config, plan.spec)
    if config.encoding.kind == "vocab":
        sparse = vocab_columns(plan.spec, _make_vocabularies(config, plan, cuts, executor))
    else:
        sparse = hash_columns(config, plan.spec)
    journal = open_journal(plan.output, "encode")
    encode = EncodeUnits(plan, cuts, tuple(dense), tuple(sparse), journal)
    results = run_pass("encoding", encode, journal, plan, executor, set(plan.splits))
    for source in plan.sources:
        source.check_unchanged()
    refuse_if_many_rejects(plan, journal, results, config.rejects.max_fraction)
    return finish(plan, journal, results, dense, sparse, identity(config))


def _make_vocabularies(
    config: PreprocessConfig, plan: Plan, cuts: Cuts | None, executor: Executor
) -> list[dict[str, Any]]:
    journal = open_journal(plan.output, "count")
    results = run_pass(
        "counting values", CountKeys(plan, cuts, journal), journal, plan, executor, plan.studied
    )
    names = [column.name for column in plan.spec.sparse]
    memory_bytes = int(config.memory_gib * 2**30)
    added = open_journal(plan.output, "vocab")
    add_up = AddUp(
        plan,
        journal,
        tuple((r["source"], r["unit"], tuple(r["entries"])) for r in results),
        config.encoding.min_count or 1,
        tuple(per_column("encoding.top_k", config.encoding.top_k, names)),
        memory_bytes,
        added,
    )
    todo = sorted(set(range(len(names))) - set(added.done_units(0)))
    bar = tqdm(
        executor.run(add_up, [Single(place) for place in todo]), "adding up", len(todo), disable=not todo
    )
    for _ in bar:
        pass
    found = [added.load(0, place) for place in range(len(names))]
    refuse_if_too_large(sum(result["kept"] for result in found), memory_bytes)
    return found


def run_pass(
    name: str, work: Work, journal: Journal, plan: Plan, executor: Executor, splits: set[str]
) -> list[dict[str, Any]]:
    """Does ``work`` on the units of all sources of ``splits`` that have not landed; gives all results, in order."""
    sources = [source for source in plan.sources if source.split in splits]
    feeds: list[TextFeed] = []
    for source in sources:
        feeds += _missing_units(source, plan.unit_bytes, journal)
    total = sum(source.bytes for source in sources if not source.is_gzip) or None
    if any(source.is_gzip for source in sources):
        total = None
    with tqdm(desc=name, total=total, unit="B", unit_scale=True, disable=not feeds) as bar:
        if total is not None:
            left = sum(
                min(plan.unit_bytes, feed.source.bytes - feed.first * plan.unit_bytes) for feed in feeds
            )
            bar.update(total - left)
        for result in executor.run(work, feeds):
            bar.update(result["size"])
    return [
        journal.load(source.place, unit) for source in sources for unit in journal.done_units(source.place)
    ]


def _missing_units(source: Source, unit_bytes: int, journal: Journal) -> list[TextFeed]:
    done = journal.done_units(source.place)
    if not source.is_gzip:
        num_units = max(-(-source.bytes // unit_bytes), 1)
        return [
            TextFeed(source, unit_bytes, unit, unit + 1) for unit in sorted(set(range(num_units)) - set(done))
        ]
    if done and done == list(range(len(done))) and journal.load(source.place, done[-1])["is_last"]:
        return []
    return [TextFeed(source, unit_bytes, skip=frozenset(done))]
