"""The model's settings."""

from dataclasses import dataclass

from omegaconf import MISSING

from dlrm_app.config.checks import one_of, positive

INITIAL_BIASES = ("base_rate", "random")


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
    initial_bias: str = "base_rate"
    batch_norm: bool = False
    dropout: float = 0.0
    bottom_dropout: float | None = None

    def problems(self) -> list[str]:
        """What types cannot express; what an architecture needs is its registry's matter, model/build."""
        problems = [
            *positive("model.stride", self.stride),
            *positive("model.ensemble_size", self.ensemble_size),
            *one_of("model.initial_bias", self.initial_bias, INITIAL_BIASES),
        ]
        for key in ("dropout", "bottom_dropout"):
            if not 0 <= (getattr(self, key) or 0) < 1:
                problems.append(f"model.{key} must lie in [0, 1), got {getattr(self, key)}")
        for key in ("bottom_mlp", "top_mlp", "projection_branch1", "projection_branch2"):
            widths = getattr(self, key) or []
            if any(width < 1 for width in widths):
                problems.append(f"model.{key} must hold layer widths of at least 1, got {widths}")
        if self.top_mlp in ([], [1]):
            problems.append(
                f"model.top_mlp needs a hidden layer, got {self.top_mlp}: as model.top_mlp=[256,1]"
            )
        return problems
