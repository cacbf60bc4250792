"""The run folder: rows survive a kill, checkpoints are whole or absent."""

import errno
import fcntl
import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from layermem_base.files import write_atomically
from layermem_bench.run.folder import RunFolder, unique_names


def a_folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    return folder


def save(folder, step, content=b"weights"):
    with folder.stage_checkpoint(step) as made:
        (made / "inner").mkdir()
        (made / "model.bin").write_bytes(content)
        (made / "inner" / "more.txt").write_text("x")


def test_rows_and_a_line_cut_short(tmp_path):
    folder = a_folder(tmp_path)
    assert folder.rows() == [] and folder.last_row() == {}
    for step in (1, 2, 3):
        folder.append_row({"step": step, "loss": 1 / step})
    with folder.metrics.open("a") as file:
        file.write('{"step": 4, "lo')
    assert [row["step"] for row in folder.rows()] == [1, 2, 3]
    assert folder.last_row() == {"step": 3, "loss": 1 / 3}
    folder.drop_rows_after(2)
    folder.append_row({"step": 3})
    assert [json.loads(line)["step"] for line in folder.metrics.read_text().splitlines()] == [
        1,
        2,
        3,
    ]


@pytest.mark.parametrize("line", [b'{"step": 2, "lo', b"\x00\xff"], ids=["cut", "binary"])
def test_a_damaged_line_with_more_after_it_is_named(tmp_path, line):
    folder = a_folder(tmp_path)
    folder.append_row({"step": 1})
    with folder.metrics.open("ab") as file:
        file.write(line + b"\n")
    folder.append_row({"step": 3})
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 2 is not a JSON row .*: mend or"):
        folder.rows()


def test_a_checkpoint_is_there_whole_or_not_at_all(tmp_path):
    folder = a_folder(tmp_path)
    assert folder.latest_checkpoint() is None
    save(folder, 10)
    with pytest.raises(KeyboardInterrupt), folder.stage_checkpoint(20) as made:
        (made / "model.bin").write_bytes(b"half")
        raise KeyboardInterrupt
    assert folder.latest_checkpoint().name == "checkpoint-10"
    save(folder, 30)
    assert [p.name for p in folder.complete_checkpoints()] == ["checkpoint-10", "checkpoint-30"]
    assert (folder.latest_checkpoint() / "inner" / "more.txt").read_text() == "x"
    assert sorted(os.listdir(folder.checkpoints)) == ["checkpoint-10", "checkpoint-30"]


class Killed(BaseException):
    """Not an Exception: nothing on the way may catch it."""


class Kill:
    """A hook that refuses every operation on files from one of them on.

    What is there then stays as a kill at that moment leaves it: no clean-up gets through.
    """

    left = None

    def __call__(self, event, _):
        if self.left is not None and event.startswith(("open", "os.", "shutil.")):
            self.left -= 1
            if self.left < 0:
                raise Killed

    def before(self, operation, act):
        """Call ``act``, killed before one of its operations; return whether it got to it."""
        self.left = operation
        try:
            act()
        except Killed:
            return True
        finally:
            self.left = None
        return False


@pytest.fixture(scope="module")
def kill():
    # Python removes no audit hook; this one does nothing once the tests have ended.
    hook = Kill()
    sys.addaudithook(hook)
    return hook


def test_a_kill_before_any_operation_leaves_checkpoints_and_rows_whole(kill, tmp_path):
    """A save, the deletion of what is old and that of rows: each is done or not begun."""
    steps = set()
    for operation in itertools.count():
        folder = RunFolder(tmp_path / str(operation))
        folder.create()
        save(folder, 5)
        for step in range(5, 9):
            folder.append_row({"step": step})

        def act(folder=folder):
            save(folder, 10)
            folder.delete_old_checkpoints(1, None)
            folder.drop_rows_after(6)

        killed = kill.before(operation, act)
        for path in folder.complete_checkpoints():
            assert {file.name for file in path.iterdir()} == {"model.bin", "inner"}
        steps.add(folder.latest_checkpoint().name)
        assert [row["step"] for row in folder.rows()] in ([5, 6, 7, 8], [5, 6]), operation
        # Whoever goes on saves again.
        save(folder, 20)
        folder.delete_old_checkpoints(1, None)
        assert os.listdir(folder.checkpoints) == ["checkpoint-20"]
        if not killed:
            break
    assert operation > 20 and steps == {"checkpoint-5", "checkpoint-10"}
    assert [row["step"] for row in folder.rows()] == [5, 6]


def test_a_second_save_of_a_step_changes_nothing(tmp_path):
    folder = a_folder(tmp_path)
    save(folder, 5, b"first")
    save(folder, 5, b"second")
    assert (folder.latest_checkpoint() / "model.bin").read_bytes() == b"first"


def test_steps_are_numbers_and_the_best_stays(tmp_path):
    folder = a_folder(tmp_path)
    for step in (9, 10, 100, 20):
        save(folder, step)
    assert [p.name for p in folder.complete_checkpoints()] == [
        f"checkpoint-{step}" for step in (9, 10, 20, 100)
    ]
    folder.delete_old_checkpoints(1, 10)
    assert [p.name for p in folder.complete_checkpoints()] == ["checkpoint-10", "checkpoint-100"]
    assert not list(folder.checkpoints.glob(".*"))


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot be written"):
        RunFolder(tmp_path / "file" / "run").create()


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "a.txt"
    write_atomically(path, "one")
    write_atomically(path, "two")
    assert path.read_text() == "two" and os.listdir(tmp_path) == ["a.txt"]
    write_atomically(tmp_path / "new" / "b.txt", "three")
    assert (tmp_path / "new" / "b.txt").read_text() == "three"


def test_two_writers_of_one_file_leave_the_text_of_one(tmp_path):
    path, texts = tmp_path / "a.txt", [letter * 100_000 for letter in "ab"]

    def write(text):
        for _ in range(50):
            write_atomically(path, text)
            assert path.read_text() in texts

    with ThreadPoolExecutor() as both:
        for ended in [both.submit(write, text) for text in texts]:
            ended.result()
    assert os.listdir(tmp_path) == ["a.txt"]


LOCKING = """
import sys
from layermem_bench.run.folder import RunFolder
with RunFolder(sys.argv[1]).locked():
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_lock_is_of_the_folder_by_any_name_and_goes_with_a_killed_process(tmp_path):
    folder, alias = a_folder(tmp_path), tmp_path / "alias"
    alias.symlink_to(folder.path)
    command = [sys.executable, "-c", LOCKING, str(alias)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(RuntimeError, match="another process is training in .*; wait for it"):
            folder.locked().__enter__()
    finally:
        holder.kill()
        holder.communicate()
    with folder.locked(), pytest.raises(RuntimeError, match="another process is training in"):
        # Not even this process has it twice.
        RunFolder(alias).locked().__enter__()
    with RunFolder(alias).locked():
        pass
    assert (folder.path / ".lock").exists()


def test_two_processes_cannot_write_one_run(tmp_path):
    folder = a_folder(tmp_path)
    code = (
        "import sys; from layermem_bench.run.folder import RunFolder\n"
        "with RunFolder(sys.argv[1]).locked(): print('got it')"
    )

    def other():
        command = [sys.executable, "-c", code, str(folder.path)]
        return subprocess.run(command, capture_output=True, text=True)

    with folder.locked():
        assert "another process is training in" in other().stderr
    assert other().stdout == "got it\n"


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["/a/x", "/a/y"], ["x", "y"]),
        (["/a/x", "/b/x", "/b/y"], ["a/x", "b/x", "y"]),
        (["/a/c/x", "/b/c/x"], ["a/c/x", "b/c/x"]),
        (["/x", "/a/x"], ["/x", "a/x"]),
        (["gpt2", "/a/gpt2"], ["gpt2", "a/gpt2"]),
    ],
)
def test_paths_are_called_by_what_tells_them_apart(paths, names):
    assert unique_names([Path(path).parts for path in paths]) == names


def test_a_divergence_is_of_one_run_and_not_of_one_that_has_ended(tmp_path):
    folder = RunFolder(tmp_path / "run")
    assert folder.divergence("abc") is None
    folder.record_divergence("abc", 7, "the loss is not finite")
    noted = {"run_id": "abc", "step": 7, "message": "the loss is not finite"}
    assert folder.divergence("abc") == noted and folder.divergence("def") is None
    folder.final.mkdir()
    assert folder.divergence("abc") is None


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS], ids=["ENOLCK", "ENOSYS"])
def test_a_folder_without_locks_is_refused(number, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(number, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    refusal = pytest.raises(OSError, match="cannot be locked")
    with refusal, RunFolder(tmp_path).locked():
        pass
