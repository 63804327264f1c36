"""``dlrm-export checkpoint=RUN quantize=int8 output=DIR``: a trained model as files that score without this program."""

from dlrm_app.cli.launch import launch
from dlrm_app.cli.loading import loading
from dlrm_app.config.scoring import ExportConfig


def main() -> None:
    launch("export", ExportConfig, _export, _validate)


def _export(config: ExportConfig) -> None:
    with loading():
        from dlrm_app.inference.export import export_model

    export_model(config)


def _validate(config: ExportConfig) -> None:
    from dlrm_app.inference.problems import check_export

    check_export(config)


if __name__ == "__main__":
    main()
