"""Renders the chart without a cluster and without a helm binary.

    python deploy/render.py [-f VALUES.yaml] [--name NAME] [--namespace NAME]   prints manifests
    python deploy/render.py --write                                    renews deploy/manifests

Needs the `deploy` extra. With helm itself: helm template octavo deploy/chart -n octavo -f FILE
"""

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import helm_python
import yaml

FOLDER = Path(__file__).parent
CHART = FOLDER / "chart"
MANIFESTS = FOLDER / "manifests" / "octavo.yaml"
HEADER = (
    "# Made by `make manifests` from deploy/chart with its default values; change those instead.\n"
)


def render(
    values: Mapping[str, Any] | None = None, name: str = "octavo", namespace: str = "octavo"
) -> str:
    """One YAML stream.

    Raises:
        helm_python.HelmError: a value does not fit values.schema.json; the message names it.
    """
    with helm_python.Chart.load(str(CHART)) as chart:
        files = chart.render(dict(values or {}), name=name, namespace=namespace)
    documents = []
    for path, text in sorted(files.items()):
        if path.endswith(".yaml"):
            tidy = re.sub(r"\n\s*\n+", "\n", text).strip().removeprefix("---").strip()
            documents += [part.strip() for part in re.split(r"^---$", tidy, flags=re.M)]
    return "".join(f"---\n{document}\n" for document in documents if document)


def notes(values: Mapping[str, Any] | None = None) -> str:
    """What `helm install` says at its end."""
    with helm_python.Chart.load(str(CHART)) as chart:
        files = chart.render(dict(values or {}), name="octavo", namespace="octavo")
    return files["octavo/templates/NOTES.txt"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Renders the chart.")
    parser.add_argument("-f", "--values", type=Path, help="values file, as helm's -f")
    parser.add_argument("--name", default="octavo", help="the release's name")
    parser.add_argument("--namespace", default="octavo")
    parser.add_argument("--write", action="store_true", help=f"renew {MANIFESTS.name}")
    options = parser.parse_args()
    values = yaml.safe_load(options.values.read_text()) if options.values else {}
    try:
        text = render(values, options.name, options.namespace)
    except helm_python.HelmError as error:
        sys.exit(str(error))
    if options.write:
        MANIFESTS.write_text(HEADER + text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
