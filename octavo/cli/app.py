"""The `octavo` command: one function a verb; heavy imports wait until a verb needs them."""

from pathlib import Path
from typing import Annotated

import typer

from octavo.cli import roles
from octavo.cli.chat import chat
from octavo.cli.generate import generate
from octavo.cli.probe import probe

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Serve a language model from separate prefill and decode workers.",
)


@app.command()
def up(
    model: Annotated[
        str, typer.Option(envvar="OCTAVO_MODEL", help="Folder, GGUF file or hub id.")
    ] = "smollm2-135m-instruct",
    address: Annotated[str, typer.Option(help="Where clients connect.")] = "127.0.0.1:50051",
    http_address: Annotated[
        str | None,
        typer.Option(
            envvar="OCTAVO_HTTP_ADDRESS",
            help="Where HTTP clients connect, or none. Default: 127.0.0.1:8000, if it is free.",
        ),
    ] = None,
    metrics_address: Annotated[
        str | None,
        typer.Option(
            envvar="OCTAVO_METRICS_ADDRESS",
            help="Where Prometheus reads the first process, the others at the ports behind it; or "
            "none. Default: free ports.",
        ),
    ] = None,
    log_level: Annotated[
        str, typer.Option(envvar="OCTAVO_LOG_LEVEL", help="debug, info, warning or error.")
    ] = "info",
    log_format: Annotated[
        str, typer.Option(envvar="OCTAVO_LOG_FORMAT", help="text or json, of the roles' logs.")
    ] = "text",
    prefill_workers: Annotated[int, typer.Option(help="How many, 1 to 64.")] = 1,
    decode_workers: Annotated[int, typer.Option(help="How many, 1 to 64.")] = 1,
    routers: Annotated[
        int,
        typer.Option(envvar="OCTAVO_ROUTERS", help="Processes that share the address, 1 to 16."),
    ] = 1,
    redis_url: Annotated[
        str | None, typer.Option(envvar="OCTAVO_REDIS_URL", help="Default: an embedded Redis.")
    ] = None,
    redis: Annotated[bool, typer.Option(help="--no-redis runs without any.")] = True,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    kv_dtype: Annotated[
        str, typer.Option(help="auto (as dtype) or fp8, on a GPU of 8.9 or later.")
    ] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    quantization: Annotated[
        str | None,
        typer.Option(envvar="OCTAVO_QUANTIZATION", help="int8, int4, gguf; default: none."),
    ] = None,
    lora: Annotated[
        list[str] | None, typer.Option(help="NAME=FOLDER of a LoRA adapter; repeat it.")
    ] = None,
    lora_root: Annotated[
        Path | None,
        typer.Option(envvar="OCTAVO_LORA_ROOT", help="LoadAdapter may load from below this."),
    ] = None,
    transport: Annotated[str, typer.Option(help="auto, shared_memory or bytes.")] = "auto",
    lend_cores: Annotated[
        bool, typer.Option(help="On CPU, whether a worker with work uses the cores of idle ones.")
    ] = True,
    run_dir: Annotated[
        Path | None, typer.Option(help="Keep sockets and logs here; default: a private one.")
    ] = None,
    ask: Annotated[str | None, typer.Option(help="Ask this once everything is ready.")] = None,
    start_timeout_s: Annotated[float, typer.Option(help="Give up after this long.")] = 600.0,
    grace_s: Annotated[float, typer.Option(help="How long open requests may finish.")] = 30.0,
) -> None:
    """Start routers, workers and Redis on this machine; Ctrl-C ends everything."""
    import asyncio

    from rich.markup import escape

    from octavo.checkpoint.errors import CheckpointError
    from octavo.cli.addresses import HttpUnavailable
    from octavo.cli.display import console
    from octavo.cli.up import ChildDied, UpConfig, run_up

    try:
        config = UpConfig(
            model=model,
            address=address,
            http_address=http_address,
            metrics_address=metrics_address,
            log_level=log_level,
            log_format=log_format,
            prefill_workers=prefill_workers,
            decode_workers=decode_workers,
            routers=routers,
            redis_url=redis_url,
            use_redis=redis,
            dtype=dtype,
            kv_dtype=kv_dtype,
            device=device,
            quantization=quantization,
            lora=tuple(lora or ()),
            lora_root=lora_root,
            transport=transport,
            lend_cores=lend_cores,
            run_dir=run_dir,
            start_timeout_s=start_timeout_s,
            grace_s=grace_s,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    try:
        asyncio.run(run_up(config, ask))
    except (CheckpointError, ChildDied, HttpUnavailable, OSError) as error:
        why = escape(str(error))
        console.print("[red]octavo could not run:[/]", why, soft_wrap=True, highlight=False)
        raise typer.Exit(1) from error


@app.command()
def fetch_demo() -> None:
    """Fetch and convert the demo model, SmolLM2-135M-Instruct (98 MB), into the local cache."""
    import asyncio

    from octavo.cli.display import prepare_model

    print(asyncio.run(prepare_model("smollm2-135m-instruct")))


app.command()(generate)
app.command()(chat)
app.command()(probe)
roles.register(app)


def main() -> None:
    """Entry point of the `octavo` script."""
    app()


if __name__ == "__main__":
    main()
