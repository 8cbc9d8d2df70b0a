"""What the engine's failures mean to a caller."""

from collections.abc import Iterator
from contextlib import contextmanager

from octavo.engine.errors import EngineDied, InvalidLogits, NoTokenLeft
from octavo.rpc.errors import InvalidRequest, NoWorker, RequestError


@contextmanager
def engine_errors() -> Iterator[None]:
    """Turn the engine's errors in the block into RequestErrors."""
    try:
        yield
    except EngineDied as error:
        raise NoWorker(f"this worker's engine died: {error}") from error
    except NoTokenLeft as error:
        raise InvalidRequest("sampling", f"sampling: {error}") from error
    except InvalidLogits as error:
        raise RequestError(f"the model gave no usable output: {error}") from error
