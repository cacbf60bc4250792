"""The run folder: rows survive a kill, checkpoints are whole or absent."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from layermem_base.files import write_atomically
from layermem_bench.run.folder import RunFolder, unique_names


def a_folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.metrics.touch()
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
    assert [row["step"] for row in folder.rows()] == [1, 2, 3]


def test_a_damaged_line_with_more_after_it_is_named(tmp_path):
    folder = a_folder(tmp_path)
    folder.metrics.write_bytes(b'{"step": 1}\n\x00\xff\n{"step": 3}\n')
    with pytest.raises(ValueError, match="metrics.jsonl, line 2"):
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
        folder.append_row({"step": 5})
        save(folder, 5)
        for step in range(6, 9):
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


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "a.txt"
    write_atomically(path, "one")
    write_atomically(path, "two")
    assert path.read_text() == "two" and os.listdir(tmp_path) == ["a.txt"]
    write_atomically(tmp_path / "new" / "b.txt", "three")
    assert (tmp_path / "new" / "b.txt").read_text() == "three"


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
        with pytest.raises(RuntimeError, match="another process"):
            folder.locked().__enter__()
    finally:
        holder.kill()
        holder.communicate()
    with folder.locked(), pytest.raises(RuntimeError, match="another process"):
        # Not even this process has it twice.
        RunFolder(alias).locked().__enter__()


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["/a/x", "/a/y"], ["x", "y"]),
        (["/a/x", "/b/x", "/b/y"], ["a/x", "b/x", "y"]),
        (["/x", "/a/x"], ["/x", "a/x"]),
        (["gpt2", "/a/gpt2"], ["gpt2", "a/gpt2"]),
    ],
)
def test_paths_are_called_by_what_tells_them_apart(paths, names):
    assert unique_names([Path(path).parts for path in paths]) == names
