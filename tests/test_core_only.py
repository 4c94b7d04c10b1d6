"""The core needs torch, numpy and safetensors (and what these need), nothing else."""

import importlib.metadata as metadata
import re
import subprocess
import sys
from pathlib import Path

from paths import ROOT


def needed(name, seen):
    """A distribution and everything it requires without extras."""
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return
    if name.lower() in seen:
        return
    seen[name.lower()] = distribution
    for requirement in distribution.requires or ():
        if "extra ==" not in requirement:
            needed(re.match(r"[A-Za-z0-9._-]+", requirement)[0], seen)


def site_of(names, site):
    """Make a folder that holds these distributions and what they need, and nothing else."""
    seen = {}
    for name in names:
        needed(name, seen)
    site.mkdir()
    for distribution in seen.values():
        for top in {Path(str(f)).parts[0] for f in distribution.files or ()} - {"..", "__pycache__"}:
            source = Path(str(distribution.locate_file(top)))
            if source.exists() and not (site / top).exists():
                (site / top).symlink_to(source)
    return site


def process(site, program, **options):
    """Run a program that sees this folder and the standard library alone."""
    program = (
        f"import sys; sys.path[:] = [{str(site)!r}] + [p for p in sys.path if 'site-packages' not in p]\n"
        "import importlib.util as u\n"
        "assert not any(u.find_spec(n) for n in ('sklearn', 'pytest', 'scipy', 'hypothesis')), 'not empty'\n"
        f"{program}"
    )
    words = [sys.executable, "-I", "-S", "-c", program]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, **options)


def test_core_runs_with_torch_numpy_and_safetensors_alone(tmp_path):
    site = site_of(("torch", "numpy", "safetensors"), tmp_path / "site")
    (site / "unalike").symlink_to(ROOT / "unalike")
    config = tmp_path / "run.toml"
    config.write_text(
        '[data]\nname = "synthetic-fedprox"\nalpha = 0.5\nbeta = 0.5\nclients = 5\n'
        '[method]\nname = "scaffold"\n[local]\nsteps = 3\nbatch_size = 5\n'
        f'[run]\nrounds = 2\nfolder = "{tmp_path}/out"\n'
    )
    done = process(site, f"from unalike.core import main\nsys.exit(main([{str(config)!r}]))")
    assert done.returncode == 0, done.stderr
    assert "clients_accuracy_mean" in done.stdout
    assert len((tmp_path / "out" / "rounds.jsonl").read_text().splitlines()) == 2
