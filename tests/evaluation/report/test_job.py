import subprocess
import sys

import pytest

from worldrl.core.errors import ArtefactError
from worldrl.evaluation.report.page import render
from worldrl.evaluation.report.store import save_report_data
from worldrl.jobs.environment.report import ReportSettings, main


def test_the_page_is_rebuilt_from_the_run_directory(data, tmp_path):
    save_report_data(data, tmp_path)
    result = main(ReportSettings(run_dir=str(tmp_path)))
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page == render(data)
    assert result["verdict"] == "gain"
    assert result["bytes"] == len(page.encode())
    main(ReportSettings(run_dir=str(tmp_path), output=str(tmp_path / "elsewhere" / "page.html")))
    assert (tmp_path / "elsewhere" / "page.html").read_text(encoding="utf-8") == page


def test_a_run_without_data_leaves_the_old_page_alone(tmp_path):
    (tmp_path / "report.html").write_text("old")
    with pytest.raises(
        ArtefactError,
        match=r"holds no report\.json.* benchmark-offline, check-protocol, reproduce, gpu-check; the same command",
    ):
        main(ReportSettings(run_dir=str(tmp_path)))
    assert (tmp_path / "report.html").read_text() == "old"


def test_the_command_works_without_torch_or_simulator(data, tmp_path):
    save_report_data(data, tmp_path)
    program = (
        "import sys\nfrom worldrl.jobs.environment.report import ReportSettings, main\n"
        f"main(ReportSettings(run_dir={str(tmp_path)!r}))\n"
        "assert not {'torch', 'mujoco', 'hydra'} & set(sys.modules), 'report must stay light'\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "Real success rose" in run.stderr.replace("\u00a0", " ")
    assert run.stdout == ""


def test_the_command_line_reaches_the_job(data, tmp_path):
    save_report_data(data, tmp_path)
    command = [sys.executable, "-m", "worldrl", "report", f"run_dir={tmp_path}", "preset=tiny", "seed=1"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "report.html").is_file()
    wrong = subprocess.run([*command[:4], f"run_dir={tmp_path}/no"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "not a directory" in wrong.stderr
    assert "Traceback" not in wrong.stderr
