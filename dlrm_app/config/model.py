"""The model's settings."""

from dataclasses import dataclass

from omegaconf import MISSING

from dlrm_app.config.checks import one_of, positive

MODEL_KINDS = ("dlrm", "dcn", "projection", "concat")


@dataclass(slots=True)
class ModelConfig:
    kind: str = MISSING
    bottom_mlp: list[int] = MISSING
    top_mlp: list[int] = MISSING
    dcn_num_layers: int | None = None
    dcn_low_rank_dim: int | None = None
    projection_branch1: list[int] | None = None
    projection_branch2: list[int] | None = None
    stride: int | None = None
    ensemble_size: int = 1

    def problems(self) -> list[str]:
        """What types cannot express, each with its cure."""
        problems = [
            *one_of("model.kind", self.kind, MODEL_KINDS),
            *positive("model.stride", self.stride),
            *positive("model.ensemble_size", self.ensemble_size),
            *self._misplaced(),
        ]
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

    def _misplaced(self) -> list[str]:
        """Settings of another kind of model, and an MLP that torchrec cannot build."""
        problems = []
        if self.kind == "concat" and self.bottom_mlp:
            problems.append(
                f"model.kind=concat has no bottom MLP, model.bottom_mlp is {self.bottom_mlp}: set model.bottom_mlp=[]"
            )
        if self.kind == "concat" and self.ensemble_size > 1:
            problems.append(
                f"model.ensemble_size={self.ensemble_size} needs tables of one width, which model.kind=concat does not ask for: "
                "set model.ensemble_size=1, or use model=dlrm, dcn or projection"
            )
        if self.kind != "concat" and self.stride is not None:
            problems.append(
                f"model.stride={self.stride} is a setting of model.kind=concat: set it to null, or use model=concat"
            )
        if self.top_mlp in ([], [1]):
            problems.append(
                f"model.top_mlp needs a hidden layer, got {self.top_mlp}: as model.top_mlp=[256,1]"
            )
        return problems
