"""`layermem prepare`: tasks here, on Slurm and on Ray make the tokens that train makes itself."""

import shutil
import socket
import sys

import pytest

from layermem_bench.cli import main
from layermem_bench.config.run import Data
from layermem_bench.data.datatrove_tasks import Engine
from layermem_bench.data.preparations import Work
from layermem_bench.data.preparing import prepare
from layermem_bench.data.tokenizers import load_tokenizer


def tokens(text, cache):
    """Return what training gets, which must be there already."""
    asked = Data(source=str(text), cache=str(cache))
    return [split.array().tolist() for split in prepare(asked, load_tokenizer("bytes"))]


def test_tasks_make_the_tokens_that_train_makes(text, tmp_path, capsys, caplog):
    pytest.importorskip("datatrove")
    caplog.set_level("INFO")
    # One at a time runs in this process.
    command = ["prepare", str(text), "--tasks", "3", "--workers", "1"]
    main([*command, "--data.cache", str(tmp_path / "tasks")])
    assert sum(line.startswith("preparing ") for line in caplog.messages) == 1
    made = tokens(text, tmp_path / "tasks")
    # It was found.
    assert sum(line.startswith("preparing ") for line in caplog.messages) == 1
    assert made == tokens(text, tmp_path / "alone")
    (logs,) = (tmp_path / "tasks").glob(".logs-*")
    marks = [path.name for path in sorted((logs / "3-tasks" / "completions").iterdir())]
    assert marks == ["00000", "00001", "00002"]
    # Deleted and made again, although datatrove's marks are there; by another number of tasks too.
    for tasks in ("3", "2"):
        for folder in (tmp_path / "tasks").glob("[0-9a-f]*"):
            shutil.rmtree(folder)
        command[3] = tasks
        main([*command, "--data.cache", str(tmp_path / "tasks")])
        assert tokens(text, tmp_path / "tasks") == made


def test_another_number_of_tasks_goes_on(text, tmp_path, monkeypatch):
    pytest.importorskip("datatrove")
    from layermem_bench.data import piece_writing

    make, done = piece_writing._make_piece, []

    def counted(work, plan, tokenizer, index, progress):
        if len(done) == 4:
            done.append(None)
            raise OSError(28, "No space left on device")
        make(work, plan, tokenizer, index, progress)
        done.append(index)

    monkeypatch.setattr(piece_writing, "_make_piece", counted)
    command = ["prepare", str(text), "--workers", "1", "--data.cache", str(tmp_path / "c")]
    with pytest.raises(SystemExit, match="layermem: .*No space left on device"):
        main([*command, "--tasks", "3"])
    main([*command, "--tasks", "2"])
    made = [index for index in done if index is not None]
    assert sorted(made) == list(range(len(made))) and len(made) > 8
    assert tokens(text, tmp_path / "c") == tokens(text, tmp_path / "alone")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--executor", "slurm"], "needs --partition"),
        (["--executor", "slurm", "--partition", "x"], "needs the command sbatch"),
        (["--address", "auto"], "--address is Ray's, and --executor is local"),
        (["--tasks", "0"], "tasks must be at least 1"),
        (["--data.source", "wikitext"], "takes the place of --data.source"),
        (["--data.mixture", "wikitext=0.5"], "--data.mixture wikitext=0.5: prepare each source by"),
    ],
)
def test_misuse_is_one_line(text, options, message, monkeypatch, tmp_path):
    pytest.importorskip("datatrove")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit) as error:
        main(["prepare", str(text), "--data.cache", str(tmp_path / "c"), *options])
    assert message in str(error.value.code) and "\n" not in str(error.value.code)
    assert not (tmp_path / "c").exists()


def test_an_executor_that_is_not_installed_is_named(monkeypatch):
    for name, executor in (("datatrove", "local"), ("ray", "ray")):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            with pytest.raises(ValueError, match=rf'needs {name}: pip install "layermem\[scale\]"'):
                Engine(executor=executor, tasks=1).check()


def test_an_address_at_which_nobody_listens_is_one_line(text, tmp_path):
    pytest.importorskip("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        options = ["--executor", "ray", "--address", address, "--data.cache", str(tmp_path / "c")]
        with pytest.raises(SystemExit) as error:
            main(["prepare", str(text), *options])
    said = str(error.value.code)
    assert f"nobody listens at --address {address}" in said and "\n" not in said
    assert not (tmp_path / "c").exists()


def test_a_job_array_needs_locks(tmp_path):
    """Its tasks go on after the process that began them has ended, and deleted what is its own."""
    engine = Engine(executor="slurm", tasks=2, partition="cpu")
    with pytest.raises(ValueError, match="a file system without locks"):
        engine.make(Work(tmp_path / "key", "host-1"), None, None)
