"""Who may look: the token once in the address, then a cookie; no other host's name; nothing but reading."""

from http.cookies import SimpleCookie

import httpx
import pytest
from view_pieces import COOKIE, TOKEN

ADDRESSES = ("/", "/runs", "/runs.json", "/runs/one/state", "/static/view.css", "/nothing")


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong", "?token=%C3%A9", "?Token=right"])
async def test_nothing_is_shown_without_the_token(stranger: httpx.AsyncClient, address: str, query: str) -> None:
    answer = await stranger.get(address + query)
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert "job=view" in answer.text
    assert "one" not in answer.text.split()


async def test_a_wrong_token_is_refused_even_beside_the_right_cookie(browser: httpx.AsyncClient) -> None:
    assert (await browser.get("/runs?token=wrong")).status_code == 401
    assert (await browser.get("/runs")).status_code == 200


async def test_another_cookie_is_no_token(stranger: httpx.AsyncClient) -> None:
    for name, value in ((COOKIE, "wrong"), ("lego-rl-2", TOKEN)):
        assert (await stranger.get("/runs", headers={"cookie": f"{name}={value}"})).status_code == 401


async def test_the_token_is_given_once_and_kept_where_no_script_and_no_other_site_reaches_it(
    stranger: httpx.AsyncClient,
) -> None:
    answer = await stranger.get(f"/runs/one/trials?step=1&token={TOKEN}&outcome=not+resolved")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/runs/one/trials?step=1&outcome=not+resolved"
    (morsel,) = SimpleCookie(answer.headers["set-cookie"]).values()
    assert (morsel.key, morsel.value) == (COOKIE, TOKEN)
    assert morsel["httponly"]
    assert (morsel["samesite"], morsel["path"], morsel["domain"], morsel["max-age"]) == ("strict", "/", "", "")
    assert (await stranger.get(answer.headers["location"])).status_code == 200


@pytest.mark.parametrize("path", ["//evil.example/x", "/%5Cevil.example", "/%0d%0aset-cookie:%20a=b"])
async def test_the_way_on_never_leads_to_another_host(stranger: httpx.AsyncClient, path: str) -> None:
    answer = await stranger.get(f"http://127.0.0.1:1{path}?token={TOKEN}")
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/")
    assert not answer.headers["location"].startswith(("//", "/\\"))
    assert len(answer.headers.get_list("set-cookie")) == 1


@pytest.mark.parametrize(("host", "status"), [
    ("127.0.0.1:1", 200), ("localhost", 200), ("LOCALHOST:9000", 200),
    ("evil.example", 400), ("evil.example:1", 400), ("127.0.0.1.evil.example", 400), ("localhost@evil.example", 400),
    ("0.0.0.0:1", 400), ("", 400),
])  # fmt: skip
async def test_a_name_that_others_gave_this_machine_is_refused(
    browser: httpx.AsyncClient, host: str, status: int
) -> None:
    answer = await browser.get("/runs", headers={"host": host, "cookie": f"{COOKIE}={TOKEN}"})
    assert answer.status_code == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_nothing_but_reading(browser: httpx.AsyncClient, method: str) -> None:
    assert (await browser.request(method, "/runs")).status_code == 405
    assert (await browser.head("/runs")).status_code == 200


@pytest.mark.parametrize("address", [*ADDRESSES, "/runs/one/curves", "/runs?token=wrong", f"/runs?token={TOKEN}"])
@pytest.mark.parametrize("host", ["127.0.0.1", "evil.example"])
async def test_every_answer_forbids_scripts_and_other_hosts(
    browser: httpx.AsyncClient, address: str, host: str
) -> None:
    answer = await browser.get(address, headers={"host": host})
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy.pop("default-src") == "'none'"
    assert set(policy.values()) <= {"'self'", "'none'"}
    assert not {"script-src", "connect-src", "frame-src"} & set(policy)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in answer.headers
