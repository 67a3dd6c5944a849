"""Who may look: this machine's browsers that were given this start's token, and nobody else.

Every request passes here first, in this order: the host it names must be this machine (a name that another page has
bound to 127.0.0.1 is not), then it must carry the token: once in the query, from then on in a cookie that scripts
cannot read and other sites cannot send. Every answer, an error too, forbids scripts, frames and other hosts.
Refuses with 400 and 401.
"""

import secrets
from collections.abc import Mapping
from urllib.parse import quote, urlencode

from starlette.datastructures import MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOSTS = ("127.0.0.1", "localhost")
"""At any port: a tunnel from another machine ends at a port of its own."""
PARAMETER = "token"

_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_NO_TOKEN = "Open the address that `job=view` printed when it started: it holds the token of this start.\n"


def guarded(app: ASGIApp, token: str, cookie: str) -> ASGIApp:
    """`app` behind the token; `cookie` is the name it is kept under."""
    return _Headers(TrustedHostMiddleware(_Token(app, token, cookie), list(HOSTS), www_redirect=False))


class _Headers:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, with_headers)


class _Token:
    def __init__(self, app: ASGIApp, token: str, cookie: str) -> None:
        self._app, self._token, self._cookie = app, token, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        given = request.query_params.get(PARAMETER)
        if given is not None and self._right(given):
            await self._keep(request)(scope, receive, send)
        elif given is None and self._right(request.cookies.get(self._cookie, "")):
            await self._app(scope, receive, send)
        else:
            await PlainTextResponse(_NO_TOKEN, status_code=401)(scope, receive, send)

    def _right(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(), self._token.encode())

    def _keep(self, request: Request) -> Response:
        """To the same address without the token: it must not stay in a history or a bookmark."""
        rest = [(name, value) for name, value in request.query_params.multi_items() if name != PARAMETER]
        path = "/" + quote(request.scope["path"].lstrip("/\\"))  # never `//host`, which would be another host's address
        response = RedirectResponse(path + ("?" + urlencode(rest) if rest else ""), status_code=303)
        response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
        return response
