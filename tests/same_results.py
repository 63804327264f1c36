"""Do two versions of the project compute the same? All that the commands compute, recorded and compared to the bit.

    python tests/same_results.py record CHECKOUT results.json     # some five minutes on two cores
    python tests/same_results.py compare before.json after.json   # prints what differs; exits with 1 if anything does

A recording holds digests of datasets and of checkpoints' tensors, and in full every loss, metric, learning rate
and sharding plan; clocks, words, pages and configurations are left out. The commands alone are called
(python -m dlrm_app.cli …), with CHECKOUT on PYTHONPATH and in a folder of their own: modules may move.

One checkout gives the same recording each time, on machines of one kind with the same packages.
"""

import argparse
import functools
import gzip
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

CLOCKS = {
    "time",
    "seconds",
    "samples_per_second",
    "step_ms",
    "train_seconds",
    "wall_seconds",
    "metrics_bytes",
}
"""Keys of what a clock decides; ``metrics_bytes`` is the length of a text with times in it."""
OLD_NAMES = (
    (r"merlin=(\w+)", r"experiment=merlin_\1"),
    (r"dataset=practice\.tsv\.yaml", "dataset=criteo_practice"),
)
"""Settings by their names now, and what a checkout without conf/merlin calls them."""
SCRATCH = re.compile(re.escape(tempfile.gettempdir()) + r"/same-results-[^/\"]+/")
"""Where a recording's commands work: left out of the paths in what they write."""

PLAIN = {  # with nothing left to choose
    "dense.transform": "log1p",
    "dense.bucket_columns": "null",
    "dense.bucket_boundaries": "[0,1,2,3,4,6,8,12,16,24,32,64,128,256,512,1024,4096,16384,65536]",
    "dense.target_columns": "null",
}
SPLIT = ["split.val=0.1", "split.test=0.1", "layout.unit_mib=1", "threads=2"]
HASH = ["input.train=log.tsv", *SPLIT, "encoding=hash"]
VOCAB = ["input.train=log.tsv", *SPLIT, "encoding=vocab"]
CSV = ["dataset=example_csv", "input.train=shop.csv", *SPLIT, "rejects.max_fraction=0.01"]
MULTI_HOT = "multi_hot.sizes=[3,2,1,2,6,1,1,1,1,7,3,8,1,6,9,5,1,1,1,12,10,7,5,3,1,1]"
DATASETS = {
    "hash": [*HASH, "encoding.num_embeddings=2000"],
    "practice": ["dataset=practice.tsv.yaml", "input.train=practice.tsv", *SPLIT, "encoding=vocab"],
    "gzip": ["input.train=log.tsv.gz", *SPLIT, "encoding.num_embeddings=3000"],
    "vocab": [*VOCAB, "encoding.min_count=2", "encoding.top_k=1500", "dense.bucket_columns=all"],
    "multi_hot": [*HASH, "encoding.num_embeddings=500", MULTI_HOT, "dense.transform=log3", "shuffle=block"],
    "full": [*VOCAB, "shuffle=full", "seed=3", "layout.shuffled_shard_rows=15000"],
    "standardized": [
        "encoding=hash",
        "input.train=log.tsv",
        "input.val=new.tsv",
        "threads=2",
        "dense.transform=standardize",
    ],
    "later": ["input.train=new.tsv", *SPLIT, "encoding=from_dataset", "encoding.path=vocab"],
    "shop": [*CSV, "encoding=vocab"],
    "shop_raw": [*CSV, "encoding.num_embeddings=300", "dense.transform=none"],
}

OVERFLOWING = (700, 2501, 4000, 6501, 8000)
"""Rows of shop.csv whose raw values make a loss inf or nan."""

MLP = ["model.bottom_mlp=[16]", "model.top_mlp=[16,1]"]
TRAIN = [
    "tables.embedding_dim=8",
    "trainer.global_batch_size=512",
    "data.lanes=8",
    "trainer.log_every_steps=1",
]
DCN = ["model=dcn", "model.dcn_low_rank_dim=8", *MLP]
PROJECTION = ["model=projection", "model.projection_branch1=[16,4]", "model.projection_branch2=[16,4]", *MLP]
OWN_TABLES = ["tables=own.yaml", "model=concat", "model.top_mlp=[16,1]", "data.path=synthetic"]
ENSEMBLE = ["tables.embedding_dim=16", "model.ensemble_size=4", "optimizer=adagrad"]
RUNS = {  # folder: (ranks, settings)
    "one": (1, ["data.path=hash", *MLP, "trainer.epochs=2", "evaluation.every_steps=40", "evaluation.group_by=cat_5"]),
    "dcn_adagrad": (1, ["data.path=multi_hot", *DCN, "optimizer=adagrad", "evaluation.per_epoch=2"]),
    "projection_sgd": (1, ["data.path=vocab", *PROJECTION, "optimizer=sgd", "schedule=polynomial"]),
    "concat_adam": (1, [*OWN_TABLES, "model.stride=4", "optimizer=adam"]),
    "partial_rowwise_adam": (1, ["data.path=full", *MLP, "optimizer=partial_rowwise_adam", "data.shuffle=false"]),
    "lamb_warmup": (1, ["data.path=gzip", *MLP, "optimizer=lamb", "schedule=warmup", "schedule.dense.warmup_steps=30"]),
    "rowwise_lamb_cosine": (1, ["data.path=hash", *MLP, "optimizer=partial_rowwise_lamb", "schedule=cosine"]),
    "bounds": (1, ["data.path=standardized", *MLP, "optimizer.sparse.max_gradient=0.001",
        "optimizer.dense.clip_norm=0.1", "optimizer.dense.kind=adamw", "optimizer.dense.weight_decay=0.01"]),
    "weight_decay": (1, ["data.path=shop", *MLP, "trainer.epochs=3", "optimizer.sparse.weight_decay=0.01"]),
    "bf16": (1, ["data.path=hash", *DCN, "trainer.precision=bf16", "tables.data_type=fp16"]),
    "ensemble": (1, ["data.path=hash", *DCN, *ENSEMBLE]),
    "resumed": (1, ["data.path=hash", *MLP, "trainer.max_steps=40", "checkpoint.every_steps=20"]),
    "two": (2, ["data.path=hash", *MLP, "evaluation.every_steps=40", "evaluation.group_by=cat_5"]),
    "two_row_wise": (2, ["data.path=multi_hot", *DCN, "optimizer=adagrad", "sharding.types=[row_wise]"]),
    "two_column_wise": (2, ["data.path=vocab", *PROJECTION, "optimizer=sgd", "sharding.types=[column_wise]",
        "sharding.tables={*:{min_partition:4}}"]),
    "two_table_wise": (2, [*OWN_TABLES, "optimizer=adagrad", "sharding.types=[table_wise]",
        "tables.data_types={halves:fp16}"]),
    "two_replicated": (2, ["data.path=shop", *MLP, "optimizer=partial_rowwise_adam", "trainer.epochs=3",
        "sharding.tables={t_shop:{types:[data_parallel]}}"]),
    "two_lamb": (2, ["data.path=full", *MLP, "optimizer=lamb", "schedule=step", "schedule.sparse.milestones=[50]",
        "schedule.dense.milestones=[40]"]),
    "two_bf16": (2, ["data.path=gzip", *DCN, "trainer.precision=bf16",
        "sharding.collectives.forward=fp16", "sharding.collectives.backward=bf16"]),
    "two_ensemble": (2, ["data.path=multi_hot", *MLP, *ENSEMBLE]),
    "two_resumed": (2, ["data.path=hash", *MLP, "trainer.max_steps=40", "checkpoint.asynchronous=true"]),
}  # fmt: skip
RESUMED = ("resumed", "two_resumed")
EVALUATIONS = {
    "evaluate": (1, ["checkpoint=one", "against=resumed", "group_by=cat_5", "confidence=0.9"]),
    "evaluate_later": (1, ["checkpoint=projection_sgd", "data.path=later", "which=best"]),
    "two_evaluate": (2, ["checkpoint=two_row_wise", "split=val", "sharding.types=[table_wise]"]),
}
PLANS = {
    "plan_medium": ["merlin=medium", "topology=a100_80g", "topology.nodes=2"],
    "plan_dcnv2": ["experiment=mlperf_dcnv2", "topology=a100_40g_8"],
    "plan_own": ["tables=own.yaml", "model=concat", "topology=cpu_2"],
}
OWN = """
specs:
  - {name: shared, count: 3, rows: 700, dim: 8, features: [one, bag], pooling_factors: [1, 10]}
  - {name: halves, rows: 3000, dim: 16, features: [half]}
  - {name: means, rows: 5000, dim: 4, features: [mean], pooling: mean, pooling_factors: [5]}
  - {name: apart, rows: 90, dim: 12, features: [apart], init: normal, init_scale: 0.1, optimizer: {lr: 0.05}}
"""


def record(checkout: Path, results: Path) -> bool:
    """Runs everything with the code of ``checkout`` and writes what came of it; False if a command failed."""
    if not (checkout / "dlrm_app").is_dir():  # Python would take the installed one instead
        sys.exit(f"{checkout} holds no dlrm_app: name the folder of a checkout")
    with tempfile.TemporaryDirectory(prefix="same-results-") as name:
        folder = Path(name)
        run = functools.partial(run_command, checkout, folder)
        write_inputs(folder, run)
        found = {}
        for case, work in cases(folder, run):
            start = time.perf_counter()
            try:
                found[case] = work()
            except Exception as error:  # of the command, or of reading what it left: the other cases go on
                found[case] = {"failed": repr(error)[:200]}
                print(f"{case} failed: {error}\n{getattr(error, 'stderr', '')[-6000:]}", file=sys.stderr)
            print(f"{case}: {time.perf_counter() - start:.1f} s", flush=True)
    results.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return not any("failed" in value for value in found.values())


def run_command(checkout: Path, folder: Path, name: str, *settings: str, ranks: int = 1) -> str:
    """What ``dlrm-NAME`` prints, run in ``folder``. Raises CalledProcessError."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    launcher = torchrun if ranks > 1 else []
    arguments = [sys.executable, *launcher, "-m", "dlrm_app.cli", name, *settings]
    if not (checkout / "conf/merlin").is_dir():
        for pattern, old in OLD_NAMES:
            arguments = [re.sub(f"^{pattern}$", old, word) for word in arguments]
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
    done = subprocess.run(arguments, cwd=folder, env=environment, check=True, capture_output=True, text=True)
    return done.stdout


def write_inputs(folder: Path, run: Callable[..., str]) -> None:
    """The logs that are preprocessed, with bad lines in them, and tables of our own."""
    run("generate", "output=log.tsv", "rows=60000", "max_cardinality=3000", "seed=7")
    practice = ["rows=6000", "max_cardinality=500", "orders.rate=0.3", "histories.length=5", "weights=0.5"]
    run("generate", "output=practice.tsv", *practice)
    run("generate", "output=new.tsv", "rows=6000", "start_row=60000", "max_cardinality=3000", "seed=7")
    (folder / "log.generated").write_bytes((folder / "log.tsv").read_bytes())
    lines = (folder / "log.tsv").read_bytes().splitlines(keepends=True)
    good = lines[0]
    bad = (b"\n", good[:50] + b"\n", b"2" + good[1:], good[:-1] + b"x\n", b"\tx" + good)
    for place, line in enumerate(bad, start=1):
        lines.insert(9_000 * place, line)
    (folder / "log.tsv").write_bytes(b"".join(lines))
    (folder / "log.tsv.gz").write_bytes(gzip.compress(b"".join(lines), mtime=0))
    (folder / "shop.csv").write_text("".join(shop_lines(random.Random(0))), encoding="utf-8")
    (folder / "own.yaml").write_text(OWN, encoding="utf-8")


def shop_lines(draw: random.Random) -> Iterator[str]:
    """A CSV of conf/dataset/example_csv.yaml: quotes, text beyond ASCII, missing values, lists, bad lines."""
    yield "clicked,age,price,seconds,session,user,shop,device,last_items\n"
    for row in range(12_000):
        user = draw.choice(('"Müller, Ada"', '"a ""b"""', "", f"user {int(draw.expovariate(0.02))}"))
        shop = draw.choice(("", "-7", *map(str, range(40))))
        items = "|".join(
            draw.choice(("", "tea", f"item{draw.randrange(60)}")) for _ in range(draw.randrange(5))
        )
        price = draw.choice(("", f"{draw.lognormvariate(2, 1):.2f}"))
        seconds = ("3e38", "-3e38")[row % 2] if row in OVERFLOWING else f"{draw.gauss(0, 1):.3e}"
        clicked = int(draw.random() < (0.5 if "7" in user + shop else 0.2))
        age, device = draw.randrange(90), f"{draw.randrange(999):X}"
        yield f"{clicked},{age},{price},{seconds},{row},{user},{shop},{device},{items}\n"
        if row % 4000 == 99:
            yield "1,2,3\n" if row < 5000 else f'0,old,1.5,nan,{row},"open,1,ff,\n'


def cases(folder: Path, run: Callable[..., str]) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """(name, what runs it and tells its results) of everything, in the order in which it can be run."""

    def generate(name: str, *settings: str) -> dict[str, Any]:
        run("generate", "format=dataset", f"output={name}", "val_rows=1000", "threads=2", *settings)
        printed = run("check", f"data.path={name}")
        return {**dataset_results(folder / name), "check": printed_numbers(printed)}

    def preprocess(name: str, settings: list[str]) -> dict[str, Any]:
        run("preprocess", *settings, f"output={name}")
        printed = run("check", f"data.path={name}")
        return {**dataset_results(folder / name), "check": printed_numbers(printed)}

    def train(name: str, ranks: int, settings: list[str]) -> dict[str, Any]:
        settings = [f"output={name}", f"trainer.threads={3 - ranks}", *TRAIN, *settings]
        run("train", *settings, ranks=ranks)
        if name in RESUMED:
            run("train", *settings, "resume=auto", "trainer.max_steps=null", ranks=ranks)
        return run_results(folder / name)

    def evaluate(name: str, ranks: int, settings: list[str]) -> dict[str, Any]:
        run("evaluate", f"output={name}.json", f"threads={3 - ranks}", *settings, ranks=ranks)
        return read_json(folder / f"{name}.json")

    def make_plan(name: str, settings: list[str]) -> dict[str, Any]:
        printed = run("plan", *settings, f"output={name}")
        return {"plan": read_plan(folder / name / "plan.yaml"), "printed": printed_numbers(printed)}

    yield "log", lambda: {name: digest((folder / name).read_bytes()) for name in ("log.generated", "new.tsv")}
    yield "merlin_tiny", lambda: generate("merlin_tiny", "merlin=tiny", "rows=3000")
    own = ["tables=own.yaml", "rows=20000", "num_dense=5", "test_rows=1000"]
    yield "synthetic", lambda: generate("synthetic", *own)
    for name, settings in DATASETS.items():
        typed = {word.partition("=")[0] for word in settings}
        plain = [f"{key}={value}" for key, value in PLAIN.items() if key not in typed]
        yield name, functools.partial(preprocess, name, [*settings, *plain])
    for name, (ranks, settings) in RUNS.items():
        yield name, functools.partial(train, name, ranks, settings)
    for name, (ranks, settings) in EVALUATIONS.items():
        yield name, functools.partial(evaluate, name, ranks, settings)
    for name, settings in PLANS.items():
        yield name, functools.partial(make_plan, name, settings)


def dataset_results(folder: Path) -> dict[str, Any]:
    """A dataset folder's manifest, rows, vocabularies and rejected lines."""
    manifest, rejects = read_json(folder / "manifest.json"), folder / "rejects.jsonl"
    return {
        "manifest": {
            **{key: value for key, value in manifest.items() if key != "config"},
            "sources": [{**source, "modified_ns": None} for source in manifest["sources"]],
        },
        "rows": {
            name: table_digests([folder / shard["path"] for shard in split["shards"]])
            for name, split in manifest["splits"].items()
        },
        "vocabularies": {path.name: table_digests([path]) for path in sorted(folder.glob("vocab/*.parquet"))},
        "rejects": read_lines(rejects) if rejects.is_file() else [],
    }


def table_digests(paths: list[Path]) -> dict[str, str]:
    """Column → digest of its type and values, over all files in this order."""
    table = pa.concat_tables([pq.read_table(path, partitioning=None) for path in paths]).combine_chunks()
    return {name: column_digest(table[name]) for name in table.column_names}


def column_digest(column: pa.ChunkedArray) -> str:
    """Of its type and values, however they are chunked."""
    parts = [str(column.type)]
    if pa.types.is_list(column.type):
        parts.append(digest(pc.list_value_length(column).to_numpy().tobytes()))
        column = pc.list_flatten(column)
    values = column.to_numpy()
    parts.append(digest(repr(values.tolist()).encode() if values.dtype == object else values.tobytes()))
    return " ".join(parts)


def run_results(folder: Path) -> dict[str, Any]:
    """A training's events, curves, result and plan, and the tensors and progress of its newest checkpoint."""
    checkpoints = sorted(folder.glob("checkpoints/step-*"))
    marker, curves = read_json(checkpoints[-1] / "complete.json"), read_json(folder / "curves.json")
    return {
        "events": [
            each for each in read_lines(folder / "metrics.jsonl") if each["event"] in ("train", "eval")
        ],
        "result": read_json(folder / "result.json"),
        "curves": {split: digest(json.dumps(values).encode()) for split, values in curves.items()},
        "plan": read_plan(folder / "plan.yaml"),
        "checkpoints": [path.name for path in checkpoints],
        "progress": {
            key: value for key, value in marker.items() if key not in ("files", "config", "checksum")
        },
        "tensors": dict(tensor_digests(checkpoints[-1])),
    }


def tensor_digests(checkpoint: Path) -> Iterator[tuple[str, str]]:
    """(name and offsets, digest of type, shape and values) of every piece of every tensor."""
    index = json.loads((checkpoint / "index.json").read_text(encoding="utf-8"))
    for name, offsets, dtype, sizes, values in saved_pieces(checkpoint, index):
        yield f"{name} {offsets}", f"{dtype} {sizes} {digest(values)}"


def saved_pieces(checkpoint: Path, index: Any) -> Iterator[tuple[str, list[int], str, list[int], bytes]]:
    """(name, offsets, type, sizes, bytes) of every piece."""
    for name, entry in index["tensors"].items():
        for offsets, sizes, file, start, length in entry["pieces"]:
            yield (
                name,
                offsets,
                f"torch.{entry['dtype']}",
                sizes,
                read_bytes(checkpoint / file, start, length),
            )


def read_bytes(path: Path, start: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(length)


def printed_numbers(text: str) -> str:
    """All numbers that a command prints, in their order, without how long it took."""
    return " ".join(re.findall(r"\d[\d.,]*", re.sub(r"[\d.,]+ (s|min|h)\b", "", text)))


def read_plan(path: Path) -> dict[str, Any]:
    """The values of a plan.yaml, without its format and version."""
    value = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {key: part for key, part in value.items() if key not in ("format", "version")}


def read_json(path: Path) -> Any:
    """What a JSON file holds, without clocks."""
    return parse(path.read_text(encoding="utf-8"))


def read_lines(path: Path) -> list[Any]:
    """What each line of a file of JSON lines holds, without clocks."""
    return [parse(line) for line in path.read_text(encoding="utf-8").splitlines()]


def parse(text: str) -> Any:
    """JSON without clocks and without the scratch folder's name."""
    return json.loads(
        SCRATCH.sub("", text),
        object_pairs_hook=lambda pairs: {key: value for key, value in pairs if key not in CLOCKS},
    )


def digest(content: bytes) -> str:
    """16 hex digits."""
    return hashlib.sha256(content).hexdigest()[:16]


def compare(before: Path, after: Path) -> bool:
    """Prints where the two recordings differ; whether they are the same."""
    old, new = (json.loads(path.read_text(encoding="utf-8")) for path in (before, after))
    same, num_values = True, 0
    for case in {**old, **new}:
        ours, theirs = dict(leaves(old.get(case, "absent"))), dict(leaves(new.get(case, "absent")))
        different = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
        failed = [key for key in {**ours, **theirs} if key == ".failed"]
        for key in (failed or different)[:10]:
            print(f"{case}{key}: {shorten(ours.get(key))} before, {shorten(theirs.get(key))} after")
        if len(different) > 10:
            print(f"{case}: {len(different):,} of {len(ours):,} values differ")
        same, num_values = same and not (different or failed), num_values + len(ours)
    print(f"{num_values:,} values of {len(old)} cases: {'all the same' if same else 'not the same'}")
    return same


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """(place, text) of every number and string in ``value``."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, f"{place}.{key}")
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from leaves(part, f"{place}[{number}]")
    else:
        yield place, json.dumps(value)


def shorten(text: str | None) -> str:
    """At most 100 characters of it."""
    return "absent" if text is None else text if len(text) <= 100 else f"{text[:99]}…"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for work, names in ((record, ("checkout", "results")), (compare, ("before", "after"))):
        command = commands.add_parser(work.__name__, help=work.__doc__)
        command.set_defaults(work=work)
        for name in names:
            command.add_argument(name, type=Path)
    arguments = vars(parser.parse_args())
    sys.exit(0 if arguments.pop("work")(**arguments) else 1)


if __name__ == "__main__":
    main()
