"""`job=view` as a person meets it: the address, the loopback alone, Ctrl-C, and a port that is taken."""

import signal
import socket
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from learning_pieces import a_run
from test_command_line import engine
from view_server import viewing

STEPS = [{"a": [0.0, 1.0]}]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_shows_runs_until_it_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    a_run(tmp_path / "runs" / "one", STEPS)
    with viewing(tmp_path) as started, httpx.Client(follow_redirects=True) as browser:
        (token,) = parse_qs(urlsplit(started.address).query)["token"]
        assert len(token) >= 43  # 256 bits
        assert httpx.get(started.address.partition("?")[0]).status_code == 401
        answer = browser.get(started.address)
        assert answer.status_code == 200
        assert "token" not in str(answer.url)
        assert ">one</a>" in answer.text
        assert browser.get(answer.url.join("/runs/one/curves.json")).json()["steps"] == [1]
        a_run(tmp_path / "runs" / "two", STEPS)  # begun since
        assert ">two</a>" in browser.get(answer.url).text
        code, told = started.end(number)  # with a connection that the browser keeps open
        assert (code, told) == (130, "stopping\nended, runs are not touched by it\n")
        with pytest.raises(httpx.ConnectError):
            httpx.get(started.address)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["one", "two"]


def test_each_start_has_a_token_of_its_own_and_only_the_loopback_answers(tmp_path: Path) -> None:
    with viewing(tmp_path) as one, viewing(tmp_path) as two:
        first, second = urlsplit(one.address), urlsplit(two.address)
        assert first.query != second.query
        assert httpx.get(f"http://{first.netloc}/?{second.query}").status_code == 401
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.2:{first.port}/")
        with httpx.Client(follow_redirects=True) as browser:  # one cookie jar for both: they do not take turns
            assert browser.get(one.address).status_code == browser.get(two.address).status_code == 200
            assert browser.get(f"http://{first.netloc}/runs").status_code == 200
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_cannot_be_had(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = engine(tmp_path, "job=view", f"job.port={port}")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"job.port={port}: 127.0.0.1:{port} cannot be had: Address already in use; "
        "end what listens there, set another port, or 0 for any that is free\n"
    )
    done = engine(tmp_path, "job=view", "job.port=65536")
    assert (done.returncode, done.stderr.partition(":")[0]) == (2, "job.port=65536")
