"""An OpenAI-compatible server of a policy: `python -m slca.serve --checkpoint=...` (extra: `serve`).

    engine.py    what an engine is: requests in, pieces of sampled ids out (`Engine`); an oracle can stand in for a model
    slots.py     the engine over the project's own slot scheduler, on one device thread
    app.py       `make_app(engine)`: the HTTP application

The chat template, the parser and the stop tokens are those of training, so the ids that a conversation gets here are the ids
that it has in a training row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slca.serve.engine import Engine


def make_app(engine: Engine, **options: Any) -> Any:
    """The ASGI application over an engine; options: see `slca.serve.app.make_app`. Raises ImportError without the extra."""
    try:
        from slca.serve import app
    except ImportError as error:
        raise ImportError(f"serving needs FastAPI and uvicorn: pip install 'slca[serve]' ({error})") from error
    return app.make_app(engine, **options)
