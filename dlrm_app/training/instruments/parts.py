"""The parts of a training step by name."""

PARTS = {
    "data": "waiting for the next batch",
    "copy": "the batch to the device",
    "input_dist": "ids to the ranks that hold their rows",
    "lookup": "rows read and pooled",
    "output_dist": "pooled vectors to the ranks of their samples, side by side",
    "mlps": "both MLPs, forward",
    "interaction": "features meet, forward",
    "mlps_backward": "both MLPs and the loss, backward",
    "interaction_backward": "features meet, backward",
    "gradient_exchange": "gradients of pooled vectors sent back; waiting for those of the dense part",
    "table_update": "gradients into the tables, optimizer fused",
    "optimizer": "the dense part's optimizer",
    "other": "the loss, and what lies between",
}
"""The parts of a step in their order, and what each is."""

TITLES = {part: part.replace("_", " ").replace("mlps", "MLPs").replace("dist", "exchange") for part in PARTS}
"""How they are called where people read."""
