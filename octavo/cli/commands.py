"""What follows `octavo`: one function a verb; heavy imports wait until a verb needs them."""

import typer

from octavo.cli import roles
from octavo.cli.chat import chat
from octavo.cli.generate import generate
from octavo.cli.options import command_for
from octavo.cli.probe import probe
from octavo.cli.top import top
from octavo.cli.up_config import UpConfig

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Serve a language model from separate prefill and decode workers.",
)


def run_up(config: UpConfig) -> None:
    """Start routers, workers and Redis on this machine; Ctrl-C ends everything."""
    from octavo.cli.up import up

    up(config)


app.command("up")(command_for(UpConfig, run_up))


@app.command()
def fetch_demo() -> None:
    """Fetch and convert the demo model, SmolLM2-135M-Instruct (98 MB), into the local cache."""
    import asyncio

    from octavo.cli.display import prepare_model

    print(asyncio.run(prepare_model("smollm2-135m-instruct")))


@app.command(
    "probe",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def run_probe(context: typer.Context) -> None:
    """Ask a router or a worker for its health: exit 0 if it is SERVING, else 1."""
    raise typer.Exit(probe(context.args))


app.command()(generate)
app.command()(chat)
app.command()(top)
roles.register(app)
