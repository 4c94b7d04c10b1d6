"""Environments of their own for the programs that ours is measured against."""

import shutil
import subprocess
import sys


def environment(home, packages):
    """(The Python of an environment with these packages, installed where they are not yet; or None, and why not)."""
    python, done = home / "bin" / "python", home / "installed.txt"
    if done.exists() and done.read_text() == "\n".join(packages):
        return python, ""
    print(f"installing {', '.join(packages)}", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check", *packages]
    result = subprocess.run(pip, capture_output=True, text=True)
    if result.returncode:
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
        return None, "could not be installed: " + (errors or ["pip failed"])[-1].removeprefix("ERROR: ")[:160]
    done.write_text("\n".join(packages))
    return python, ""
