"""Four clients in processes of their own, a model of 100,000 parameters, one exchange a round: seconds a round, and
seconds from nothing to the first aggregated round. Beside it, in the same run, the same config as a stock Flower app
(examples/flower-app, two rounds), with TLS and node keys like ours.

    python benchmarks/flower.py            # about two minutes on two quiet cores
    python benchmarks/flower.py --ours     # without stock Flower

The goals: at most 3 s a round and 20 s to the first, on two quiet cores. The load of the machine is printed.
"""

import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from unalike import config
from unalike.network import keys, one_machine

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
CLIENTS, A_ROUND, FIRST = 4, 3.0, 20.0
TABLES = {
    "data": {"name": "digits", "partition": "dirichlet:0.5", "clients": CLIENTS},
    "model": {"name": "mlp", "hidden": [1333]},  # 64 -> 1333 -> 10: 99,985 parameters
    "method": {"name": "fedavg"},
    "local": {"epochs": 1, "batch_size": 50},
    "run": {"rounds": 6, "evaluate_clients": "none"},
}


def wait(what, seconds: float, process: subprocess.Popen) -> float:
    """The moment at which something is so."""
    end = time.time() + seconds
    while time.time() < end:
        if what():
            return time.time()
        if process.poll() not in (None, 0):
            raise SystemExit(f"{process.args[0]} ended with {process.returncode}")
        time.sleep(0.02)
    raise SystemExit("it takes too long")


def lines(folder: Path) -> list[dict]:
    file = folder / "rounds.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def measure(folder: Path, began: float, process: subprocess.Popen, rounds: int) -> tuple[float, list[float]]:
    """Seconds to the first round, and of each later one as a clock on the wall shows them."""
    moments = [wait(lambda t=t: len(lines(folder)) > t, 300, process) for t in range(rounds)]
    return moments[0] - began, [b - a for a, b in itertools.pairwise(moments)]


def ours(folder: Path) -> tuple[float, list[float]]:
    (folder / "run.toml").write_text(toml(TABLES))
    began = time.time()
    command = [BIN / "unalike", "local-federation", CLIENTS, folder / "run.toml", "--folder", folder / "run", "-q"]
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL)
    try:
        result = measure(folder / "run", began, process, TABLES["run"]["rounds"])
        process.wait(60)
        return result
    finally:
        process.kill()
        process.wait()


def stock(folder: Path) -> tuple[float, list[float]]:
    """Flower's own processes at both ends: SuperLink, SuperNodes, and `flwr run` of the example app."""
    settings = {**TABLES, "run": {**TABLES["run"], "rounds": 2, "folder": str(folder / "run")}}
    del settings["data"]
    (folder / "run.toml").write_text(toml(settings))
    data = config.make_data(TABLES["data"])
    with one_machine.listen("127.0.0.1", 0) as door:
        port = door.getsockname()[1]
    address, home = f"127.0.0.1:{port}", folder / "flwr"
    environment = {
        **os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25", "NO_PROXY": "127.0.0.1,localhost", "OMP_NUM_THREADS": "1",
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }  # fmt: skip
    began, started = time.time(), []

    def start(name: str, *words) -> subprocess.Popen:
        with open(folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                [str(BIN / words[0]), *map(str, words[1:])], env=environment, stdout=log, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        started.append(process)
        return process

    def flwr(*words) -> None:
        subprocess.run([str(BIN / "flwr"), *map(str, words)], env=environment, check=True, capture_output=True)

    try:
        keys.make_server(folder / "keys", [])
        ca = folder / "keys" / "ca.crt"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "fed"\n\n[superlink.fed]\naddress = "{address}"\nroot-certificates = "{ca}"\n'
        )
        superlink = start(
            "superlink", "flower-superlink", "--host", "127.0.0.1", "--port", port, "--ssl-ca-certfile", ca,
            "--ssl-certfile", folder / "keys" / "server.crt", "--ssl-keyfile", folder / "keys" / "server.key",
            "--enable-supernode-auth", "--disable-runtime-dependency-installation",
        )  # fmt: skip
        wait(lambda: healthy(address, ca), 60, superlink)
        for k in range(CLIENTS):
            public = keys.make_node(folder / f"node{k}")
            one_machine.write_client(data, k, folder / f"data{k}.safetensors")
            flwr("supernode", "register", public, "fed")
            start(
                f"node{k}", "flower-supernode", "--superlink", address, "--root-certificates", ca,
                "--auth-supernode-private-key", folder / f"node{k}", "--host", "127.0.0.1", "--port", free_port(),
                "--node-config", f'data="{folder}/data{k}.safetensors" state="{folder}/state{k}"',
            )  # fmt: skip
        flwr("run", HERE.parent / "examples" / "flower-app", "fed", "--run-config", f'config="{folder}/run.toml"')
        return measure(folder / "run", began, superlink, 2)
    finally:
        for process in reversed(started):  # nodes first, the SuperLink last, each with what it has started
            stop(process)


def stop(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    time.sleep(0.3)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # its session: nothing of it may be left


def free_port() -> int:
    with one_machine.listen("127.0.0.1", 0) as door:
        return door.getsockname()[1]


def healthy(address: str, ca: Path) -> bool:
    import ssl

    try:
        context = ssl.create_default_context(cafile=str(ca))
        return urllib.request.urlopen(f"https://{address}/health", timeout=2, context=context).status == 200
    except OSError:
        return False


def toml(tables: dict) -> str:
    from unalike.settings.toml import dump_toml

    return dump_toml(tables)


def main() -> int:
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    results = {}
    for name, how in {"ours": ours, **({} if "--ours" in sys.argv else {"stock Flower": stock})}.items():
        with tempfile.TemporaryDirectory() as folder:
            results[name] = how(Path(folder))
        first, later = results[name]
        print(
            f"{name:<13} first round {first:6.1f} s after nothing   then {statistics.median(later):6.2f} s a round "
            f"(median of {len(later)}: {', '.join(f'{s:.2f}' for s in later)})", flush=True,
        )  # fmt: skip
    print(f"load of the machine after: {os.getloadavg()[0]:.1f}")
    first, later = results["ours"]
    good = first <= FIRST and statistics.median(later) <= A_ROUND
    print(f"at most {A_ROUND:g} s a round and {FIRST:g} s to the first: {'reached' if good else 'NOT reached'}")
    return int(not good)


if __name__ == "__main__":
    raise SystemExit(main())
