import json
import subprocess
from pathlib import Path

from click.testing import CliRunner

from loadtests.bench import main
from loadtests.process import ROOT, python
from loadtests.report import BEGIN, END


def test_unknown_systems_and_numbers_are_named() -> None:
    for arguments, words in ((["--systems", "direct,envoi"], "no system envoi"), (["--connections", "1,x"], "1,64")):
        result = CliRunner().invoke(main, arguments)
        assert (result.exit_code, words in result.output) == (2, True)


def test_a_run_writes_its_page_and_its_samples(tmp_path: Path) -> None:
    """The shortest real run, in a process of its own because the command pins itself to a core."""
    page, result = tmp_path / "page.md", tmp_path / "result.json"
    page.write_text(f"{BEGIN}{END}")
    arguments = ["--systems", "direct", "--connections", "2", "--rate", "0", "--rounds", "1", "--seconds", "0.1"]
    arguments += ["--data", str(tmp_path), "--json", str(result), "--markdown", str(page)]
    done = subprocess.run(python("loadtests.bench", *arguments), cwd=ROOT, capture_output=True, text=True, check=True)
    assert "### Reads" in done.stdout
    assert done.stdout.strip() in page.read_text()
    assert {sample["point"]["workload"] for sample in json.loads(result.read_text())["samples"]} == {
        "read",
        "write",
        "large",
        "stream",
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.md", "result.json"]
