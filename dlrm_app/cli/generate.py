"""``dlrm-generate rows=1_000_000 output=clicks.tsv``: click logs with a planted signal and a known best AUC."""

from dlrm_app.cli.launch import launch
from dlrm_app.config.datasets import GenerateConfig, generate_problems
from dlrm_app.errors import refuse_if


def main() -> None:
    launch("generate", GenerateConfig, _generate, lambda config: refuse_if(generate_problems(config)))


def _generate(config: GenerateConfig) -> None:
    from dlrm_app.synthetic import generate

    generate(config)


if __name__ == "__main__":
    main()
