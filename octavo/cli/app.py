"""The `octavo` command. Kubelets run `octavo probe` all the time, which loads gRPC alone."""

import sys


def main() -> None:
    """Entry point of the `octavo` script."""
    if sys.argv[1:2] == ["probe"]:
        from octavo.cli.probe import probe

        sys.exit(probe(sys.argv[2:]))
    from octavo.cli.commands import app

    app()


if __name__ == "__main__":
    main()
