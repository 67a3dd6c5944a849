"""The application: one route a page, as HTML and, with `.json` at its end, as the same dictionary.

Invariant: only ever reads; a page is made anew at each request, in a thread, so a slow disk holds up nobody else.
Whatever goes wrong is an answer: an address that names nothing is a 404, a damaged file the error of its own page.
"""

import asyncio
import sys
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from engine.core.errors import RunError
from engine.ui.guard import guarded
from engine.ui.others import gates_page, sweeps_page
from engine.ui.places import Asked, Page, Unknown, find_folder
from engine.ui.render import as_html, as_json
from engine.ui.runs import configuration_page, curves_page, numbers_page, runs_page, state_page
from engine.ui.text import visible
from engine.ui.tokens import tokens_page
from engine.ui.trajectory import turns_page
from engine.ui.trials import trials_page

MakePage = Callable[[Path, Asked], Page]

_TRIAL = "/runs/{run}/trials/{split}/{step:int}/{trial}"
_PAGES: tuple[tuple[str, str, MakePage], ...] = (
    ("/runs", "runs.html", runs_page),
    ("/sweeps", "sweeps.html", sweeps_page),
    ("/gates", "gates.html", gates_page),
    ("/runs/{run}/state", "state.html", state_page),
    ("/runs/{run}/curves", "curves.html", curves_page),
    ("/runs/{run}/numbers", "numbers.html", numbers_page),
    ("/runs/{run}/configuration", "configuration.html", configuration_page),
    ("/runs/{run}/trials", "trials.html", trials_page),
    (f"{_TRIAL}/turns", "turns.html", turns_page),
    (f"{_TRIAL}/tokens", "tokens.html", tokens_page),
)
"""The last part of a path is never a name, so that `.json` at its end cannot be one's either."""
_STATIC = {"view.css": "text/css", "icon.svg": "image/svg+xml"}


def build_app(root: Path, token: str, cookie: str) -> ASGIApp:
    """Shows the runs under `root` to who has the token; see `engine.ui.guard`."""
    routes = [Route("/", _home)]
    for path, template, make in _PAGES:
        routes.append(Route(path, _shown(root, template, make)))
        routes.append(Route(f"{path}.json", _shown(root, "", make)))
    routes += [Route(f"/static/{name}", _static(name, kind)) for name, kind in _STATIC.items()]
    return guarded(Starlette(routes=routes, exception_handlers={HTTPException: _refused}), token, cookie)


def _shown(root: Path, template: str, make: MakePage) -> Callable[[Request], Awaitable[Response]]:
    """Answers with a page; without a template as JSON."""

    def page(asked: Asked) -> Response:
        try:
            made = make(root, asked)
            return _answer(as_html(template, made) if template else as_json(made), json=not template)
        except Unknown as error:
            return _error(404, str(error), json=not template)
        except Exception as error:
            return _broken(root, asked, error, json=not template)

    async def handle(request: Request) -> Response:
        asked = dict(request.query_params) | {name: str(value) for name, value in request.path_params.items()}
        return await asyncio.to_thread(page, asked)

    return handle


def _broken(root: Path, asked: Asked, error: Exception, *, json: bool) -> Response:
    """What went wrong while a page was made, as an answer."""
    name = asked.get("run")
    if name is not None and find_folder(root, name) is None:
        return _error(404, f"The run {name!r} was deleted or moved while it was looked at.", json=json)
    if isinstance(error, RunError):
        return _error(500, str(error), json=json)
    print(visible("".join(traceback.format_exception(error))), file=sys.stderr)  # it may quote what a trial said
    known = "this page cannot show what it found: a file that something else wrote, or a defect of the program"
    return _error(500, f"{type(error).__name__}: {error} ({known})", json=json)


async def _home(request: Request) -> Response:  # noqa: ARG001 (what a route calls is given the request)
    return RedirectResponse("/runs", status_code=303)


def _static(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    contents = (Path(__file__).with_name("static") / name).read_bytes()

    async def handle(request: Request) -> Response:  # noqa: ARG001 (as above)
        return Response(contents, media_type=kind)

    return handle


async def _refused(request: Request, error: Exception) -> Response:
    """Of no route, or a method that no route takes."""
    problem = cast(HTTPException, error)
    return _error(problem.status_code, f"{problem.detail}: {request.url.path}", json=request.url.path.endswith(".json"))


def _error(status: int, problem: str, *, json: bool) -> Response:
    page = {"status": status, "error": problem}
    return _answer(as_json(page) if json else as_html("error.html", page), json=json, status=status)


def _answer(content: str | bytes, *, json: bool, status: int = 200) -> Response:
    return Response(content, status_code=status, media_type="application/json" if json else "text/html")
