"""``dlrm-serve model=EXPORT``: an export behind HTTP, raw rows in, probabilities out."""

from dlrm_app.cli.launch import launch
from dlrm_app.cli.loading import loading
from dlrm_app.config.scoring import ServeConfig


def main() -> None:
    launch("serve", ServeConfig, _serve, _validate)


def _serve(config: ServeConfig) -> None:
    with loading():
        from dlrm_app.inference.serve.server import serve

    serve(config)


def _validate(config: ServeConfig) -> None:
    from dlrm_app.inference.problems import check_serve

    check_serve(config)


if __name__ == "__main__":
    main()
