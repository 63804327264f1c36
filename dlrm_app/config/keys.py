"""Keys of earlier versions: refused where they are typed, read where a checkpoint holds them."""

RENAMED = {"model.members": "model.ensemble_size"}
RENAMED_IN_SPECS = {"hotness": "pooling_factors"}
GONE: dict[str, str] = {
    "check": "type dlrm-check data.path=DATASET",
    "calibrate": "dlrm-bench output=machine.yaml measures this machine for dlrm-plan topology=machine.yaml",
    "dry_run": "preprocess a part of the input (head -c 1G) to see what all of it would take",
    "recommend": "leave experiment out for a recipe by the dataset's rows (docs/how-to/recipes.md)",
    "trainer.probe_memory": "dlrm-plan estimates what a rank needs beside its tables (docs/how-to/planning.md)",
    "trainer.learn_val": "preprocess with split.val=0 to train on all rows once the settings are chosen",
    "watch_seconds": "restart dlrm-serve to serve another export",
    "limits.requests_per_second": "limit requests in the proxy before dlrm-serve",
}
"""Key of earlier versions → what to do instead: refused where it is typed, left out where a checkpoint holds it."""
