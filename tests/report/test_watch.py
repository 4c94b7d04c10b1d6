"""`unalike watch`: one page for this machine alone, made again where something has changed, and nothing is run."""

import http.client
import json
import threading
from pathlib import Path

import pytest

from unalike.cli import main
from unalike.report import watch

LINE = {"round": 1, "train_loss": 1.0, "test_accuracy": 0.5, "bytes_up": 1, "bytes_down": 1, "seconds": 0.1}
CONFIG = """
[method]
file = "evil.py:Evil"

[run]
seed = 0

[facts.data]
clients = 3

[facts.run]
rounds = 2
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    """A run in progress whose method is a file beside it, which nobody may run."""
    home = tmp_path / "run"
    home.mkdir()
    (home / "config.toml").write_text(CONFIG)
    (home / "rounds.jsonl").write_text(json.dumps(LINE) + "\n")
    (home / "evil.py").write_text("import pathlib; pathlib.Path(__file__).with_name('ran').touch()")
    return home


@pytest.fixture
def served(folder):
    server = watch.server([folder])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def get(server, path="/", host=None, method="GET", headers=()):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.putrequest(method, path, skip_host=True)
    for name, value in [("Host", host or f"127.0.0.1:{server.server_port}"), *headers]:
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, answer.read().decode(), dict(answer.headers)
    connection.close()
    return found


def test_the_page_and_its_version_are_all_there_is(served, folder):
    assert served.server_address[0] == "127.0.0.1"
    code, text, headers = get(served)
    version = get(served, "/version")[1]
    assert code == 200 and "unalike report" in text and f'"live":"{version}"' in text and len(version) == 16
    assert "connect-src 'self'" in text and headers["Cache-Control"] == "no-store"
    assert get(served, host=f"localhost:{served.server_port}")[0] == 200
    for path in ("/config.toml", "/../run/config.toml", "/?x=1", f"{folder}/config.toml"):
        assert get(served, path)[0] == 404
    assert get(served, method="POST")[0] == get(served, method="PUT")[0] == 501
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:PORT", "127.0.0.1", "127.0.0.1:1", "localhost.:PORT", ""]
)
def test_another_host_is_refused(served, host):
    code, text, _ = get(served, host=host.replace("PORT", str(served.server_port)) or " ")
    assert code == 403 and "report" not in text
    assert get(served, "/version", host="evil.example")[0] == 403


def test_two_hosts_are_refused(served):
    assert get(served, headers=[("Host", "evil.example")])[0] == 403


def test_the_page_follows_the_run_and_is_made_once_in_a_while(folder, monkeypatch):
    now, made = [0.0], []
    real = watch.report.html
    monkeypatch.setattr(watch.report, "html", lambda *given, **more: made.append(1) or real(*given, **more))
    page = watch.Page([folder], clock=lambda: now[0])
    first = page.now()
    (folder / "rounds.jsonl").write_text(json.dumps(LINE) + "\n" + json.dumps({**LINE, "round": 2}) + "\n")
    assert page.now() == first  # looked at a moment ago
    now[0] = watch.LEAST_SECONDS
    second = page.now()
    assert second[0] != first[0] and second[1] != first[1] and len(made) == 2
    now[0] *= 2
    assert page.now() == second and len(made) == 2  # nothing has changed


def test_before_the_first_round_it_waits(tmp_path, folder):
    (folder / "rounds.jsonl").unlink()
    assert watch.Page([folder]).now()[1] == watch.WAITING
    assert watch.Page([tmp_path / "none"]).now() == ("", watch.WAITING)


def test_too_many_at_once_are_sent_away(served, monkeypatch):
    """One request waits in the page; the others beyond the room get 503."""
    gate, inside = threading.Event(), threading.Semaphore(0)

    def slow(self):
        inside.release()
        gate.wait(20)
        return "v", "text"

    monkeypatch.setattr(watch.Page, "now", slow)
    threads = [threading.Thread(target=get, args=(served,)) for _ in range(watch.MOST_REQUESTS)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert inside.acquire(timeout=20)
    assert get(served)[0] == 503
    gate.set()
    for thread in threads:
        thread.join()
    assert get(served)[:2] == (200, "text")


def test_mistakes_are_one_line(tmp_path, capsys, served):
    for words, expected in (
        (["watch", str(tmp_path / "none")], "unalike watch: there is no folder"),
        (["watch", str(tmp_path), "--port", "70000"], "--port must be in [0, 65535]; got 70000."),
        (["watch", str(tmp_path), "--port", str(served.server_port)], "cannot be had"),
    ):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert expected in said and said.count("\n") == 1
