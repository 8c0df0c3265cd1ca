"""The commit that programs are told (cmake/revision.cmake), by a project that has nothing else: it is written anew when the
commit changes, and only then; without git it is unknown, or what the environment says.
"""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(small LANGUAGES NONE)
{rule}
add_custom_target(small ALL DEPENDS ${{revision}})
"""


class RevisionTest(unittest.TestCase):

    def setUp(self):
        self.temp = tempfile.TemporaryDirectory()
        self.addCleanup(self.temp.cleanup)
        self.tree = pathlib.Path(self.temp.name, "a tree")
        (self.tree / "cmake").mkdir(parents=True)
        (self.tree / "cmake/revision.cmake").write_text((ROOT / "cmake/revision.cmake").read_text(encoding="utf-8"))
        [rule] = re.findall(r"^set\(revision .*?VERBATIM\)$", (ROOT / "common/CMakeLists.txt").read_text(encoding="utf-8"),
                            re.M | re.S)
        (self.tree / "CMakeLists.txt").write_text(PROJECT.format(rule=rule))
        self.env = {key: value for key, value in os.environ.items() if not key.startswith(("GIT_", "FLOTILLA_"))}
        self.env |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CEILING_DIRECTORIES": self.temp.name,
                     "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}

    def run_in(self, folder, *command):
        return subprocess.run(command, cwd=folder, env=self.env, check=True, capture_output=True, text=True).stdout

    def commit(self, folder):
        self.run_in(folder, "git", "add", "--all", "--", ":!build")
        self.run_in(folder, "git", "commit", "--quiet", "--allow-empty", "--message", "a")
        return self.run_in(folder, "git", "rev-parse", "HEAD")[:12]

    def built(self, folder=None):
        """The revision after a build; it must have nothing left to do."""
        folder = folder or self.tree
        self.run_in(folder, "cmake", "-G", "Ninja", "-S", ".", "-B", "build")
        self.run_in(folder, "ninja", "-C", "build")
        self.assertIn("no work to do", self.run_in(folder, "ninja", "-C", "build"))
        return re.search(r'return "(.*)"', (folder / "build/build_revision.cc").read_text())[1]

    def test_without_git_it_is_unknown_or_as_the_environment_says(self):
        self.assertEqual(self.built(), "unknown")
        os.unlink(self.tree / "build/build_revision.cc")
        self.env["FLOTILLA_REVISION"] = "4bf92f3577b34da6a3ce929d0e0e4736"
        self.assertEqual(self.built(), "4bf92f3577b34da6a3ce929d0e0e4736")
        os.unlink(self.tree / "build/build_revision.cc")
        self.env["FLOTILLA_REVISION"] = '"; exit(1)'
        self.assertEqual(self.built(), "unknown")

    def test_it_follows_commits_and_checkouts(self):
        self.run_in(self.tree, "git", "init", "--quiet", "--initial-branch=main")
        self.assertEqual(self.built(), "unknown", "there is no commit yet")
        os.unlink(self.tree / "build/build_revision.cc")
        first = self.commit(self.tree)
        self.assertEqual(self.built(), first)
        second = self.commit(self.tree)
        self.assertNotEqual(first, second)
        self.assertEqual(self.built(), second)
        self.run_in(self.tree, "git", "checkout", "--quiet", first)
        self.assertEqual(self.built(), first)

    def test_a_worktree_has_its_own(self):
        self.run_in(self.tree, "git", "init", "--quiet", "--initial-branch=main")
        first = self.commit(self.tree)
        other = self.tree.parent / "other"
        self.run_in(self.tree, "git", "worktree", "add", "--quiet", str(other))
        self.assertEqual(self.built(other), first)
        second = self.commit(other)
        self.assertEqual(self.built(other), second)
        self.assertEqual(self.built(), first)

    def test_a_copy_within_another_repository_is_not_of_its_commit(self):
        outer = pathlib.Path(self.temp.name)
        self.run_in(outer, "git", "init", "--quiet")
        self.env["GIT_CEILING_DIRECTORIES"] = ""
        self.commit(outer)
        self.assertEqual(self.built(), "unknown")


if __name__ == "__main__":
    unittest.main()
