"""The model's settings."""

from dataclasses import dataclass

from omegaconf import MISSING

from dlrm_app.config.checks import one_of

MODEL_KINDS = ("dlrm", "dcn", "projection")


@dataclass(slots=True)
class ModelConfig:
    kind: str = MISSING
    bottom_mlp: list[int] = MISSING
    top_mlp: list[int] = MISSING
    dcn_num_layers: int | None = None
    dcn_low_rank_dim: int | None = None
    projection_branch1: list[int] | None = None
    projection_branch2: list[int] | None = None

    def problems(self) -> list[str]:
        """What types cannot express, each with its cure."""
        problems = one_of("model.kind", self.kind, MODEL_KINDS)
        for key in ("bottom_mlp", "top_mlp", "projection_branch1", "projection_branch2"):
            widths = getattr(self, key) or []
            if any(width < 1 for width in widths):
                problems.append(f"model.{key} must hold layer widths of at least 1, got {widths}")
        needed = {
            "dcn": ("dcn_num_layers", "dcn_low_rank_dim"),
            "projection": ("projection_branch1", "projection_branch2"),
        }
        for key in needed.get(self.kind, ()):
            if not getattr(self, key):
                problems.append(
                    f"model.{key} is needed by model.kind={self.kind}: set it, or use model={self.kind}"
                )
        return problems
