#!/usr/bin/env bash
# The project's commands. Each one does its own set-up; see `./build.sh help`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
root=$PWD
venv=$root/.venv
build=$root/build
WHEEL=ai-dynamo-runtime==1.6.1
DYNAMO_RELEASES="1.4.2 1.5.1 1.6.1"
STATICCHECK=honnef.co/go/tools/cmd/staticcheck@v0.8.2
# The time in wheels: that of the commit.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 1767225600)}; export SOURCE_DATE_EPOCH
export GOFLAGS="${GOFLAGS:--buildvcs=false}" CGO_ENABLED=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

usage() {
	cat <<'EOF'
usage: ./build.sh COMMAND [ARGUMENTS]

  demo    four mock engines, a slice of a public trace, KV routing against round robin and random (~2 min)
  test    everything CI runs: linters, Go tests (with -race), fuzz seeds, C and Python tests (~5 min the first time)
  interop our runtime and Dynamo's, as router and as worker, with three releases of Dynamo (~2 min; test runs it too)
  servers etcd and nats-server for the tests, in build/servers (~1 min the first time; test and interop do it too)
  lib     build/libdynamo_go.so and build/dynamo_go.h for C, C++ and Rust
  wheel   dist/*.whl for every Python at hand, 3.10 to 3.14, and the sdist
  docs    the documentation site, in build/docs (~10 s): open build/docs/index.html
  bench   the benchmarks of docs/benchmarks.md, us and our peers in turns (--help: parts and flags)
  soak    long runs: ten minutes of fuzzing for each target (DGO_SOAK_SECONDS), a full index, race tests repeated, sanitizers, a million calls
  clean   remove everything the other commands made

Needs Go 1.26 or newer, a C compiler, Python 3.10 or newer with its venv module and headers, and the Go and Python package
registries. bench also needs Rust's cargo and registry, because the peers are Rust crates.
EOF
}

step() { printf '\n== %s\n' "$*"; }
die() { printf 'build.sh: %s\n' "$*" >&2; exit 1; }

# --- what must be on the machine -------------------------------------------------------------------------------------

need_go() {
	command -v go >/dev/null || die "Go is missing: install Go 1.26 or newer and put it on PATH"
	local v; v=$(go env GOVERSION 2>/dev/null) || die "'go env' fails: $(go env GOVERSION 2>&1 | tail -n 1)"
	[[ $v =~ ^go1\.([0-9]+) && ${BASH_REMATCH[1]} -ge 26 ]] || die "Go 1.26 or newer is needed, 'go' is $v"
	CC=${CC:-$(command -v gcc || command -v cc || command -v clang || true)}
	[[ -n $CC ]] && command -v "${CC%% *}" >/dev/null ||
		die "a C compiler is missing${CC:+: CC=$CC is not on PATH}: install gcc (Debian: apt-get install gcc libc6-dev)"
	export CC
}

need_python() {
	command -v python3 >/dev/null || die "Python is missing: install Python 3.10 or newer (Debian: apt-get install python3 python3-dev python3-venv)"
	python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || die "Python 3.10 or newer is needed, 'python3' is $(python3 -V)"
	python3 -c 'import ensurepip, venv' 2>/dev/null || die "Python's venv module is missing (Debian: apt-get install python3-venv)"
	python3 - <<'EOF' || die "Python's headers are missing (Debian: apt-get install python3-dev)"
import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))
EOF
}

need_cargo() {
	command -v cargo >/dev/null || die "cargo is missing, and the benchmarks' peers are Rust crates: install Rust 1.85 or newer and put cargo on PATH"
}

# stamped FILE COMMAND...: runs the command unless it already ran with the same version of FILE.
stamped() {
	local file=$1 stamp; shift
	stamp=$venv/.stamp-$(basename "$file")
	[[ -e $stamp ]] && cmp -s "$file" "$stamp" && return
	"$@" && cp "$file" "$stamp"
}

# The package's build requirement, from its one place.
build_requirement() { sed -nE 's/^requires = \["(.*)"\]$/\1/p' pyproject.toml; }

python_env() {
	need_python
	[[ -x $venv/bin/python ]] || { step "Python environment in .venv"; python3 -m venv "$venv"; }
	stamped pyproject.toml "$venv/bin/pip" install -q "$(build_requirement)"
}

test_env() {
	python_env
	stamped python/requirements-test.txt "$venv/bin/pip" install -q -r python/requirements-test.txt
	stamped python/requirements-wheel.txt "$venv/bin/pip" install -q -r python/requirements-wheel.txt
}

# Installs the package, built from this tree, into .venv.
install_package() {
	need_go; python_env
	step "package dynamo_go (Go library and Python extension)"
	rm -rf "$build/package"
	"$venv/bin/pip" wheel -q --no-build-isolation --no-deps -w "$build/package" .
	"$venv/bin/pip" install -q --no-index --no-deps --force-reinstall "$build"/package/*.whl
}

# --- commands --------------------------------------------------------------------------------------------------------

cmd_lib() {
	need_go; mkdir -p "$build"
	step "build/libdynamo_go.so"
	go build -tags=grpcnotrace -trimpath -buildmode=c-shared -ldflags='-s -w -buildid=' -o "$build/libdynamo_go.so" ./capi
	rm -f "$build/libdynamo_go.h" # cgo's own header; the contract is include/dynamo_go.h
	cp include/dynamo_go.h include/dynamo_go.hpp "$build/"
	ls -l "$build/libdynamo_go.so" "$build/dynamo_go.h"
}

# Wheels for every Python at hand, tagged by what they need, and the sdist. Two builds of a commit are byte for byte the same.
cmd_wheel() {
	need_go; need_python; python_env
	stamped python/requirements-wheel.txt "$venv/bin/pip" install -q -r python/requirements-wheel.txt
	local v p; local -A pythons=()
	for v in 3.10 3.11 3.12 3.13 3.14; do
		if p=$(find_python "$v"); then pythons[$v]=$p; else echo "no Python $v with headers on this machine"; fi
	done
	mkdir -p dist; rm -rf "$build/wheel"; mkdir -p "$build/wheel"
	for v in "${!pythons[@]}"; do
		step "wheel for Python $v"
		[[ -x $build/py$v/bin/python ]] || "${pythons[$v]}" -m venv "$build/py$v"
		"$build/py$v/bin/pip" install -q "$(build_requirement)"
		"$build/py$v/bin/pip" wheel -q --no-build-isolation --no-deps -w "$build/wheel" .
	done
	step "tags"
	PATH=$venv/bin:$PATH "$venv/bin/auditwheel" repair --only-plat -w dist "$build"/wheel/*.whl 2>/dev/null
	step "sdist"
	"$venv/bin/python" -c 'from setuptools.build_meta import build_sdist; build_sdist("dist")' >/dev/null
	ls -l dist/*.whl dist/*.tar.gz
}

cmd_docs() {
	need_go; python_env
	stamped python/requirements-docs.txt "$venv/bin/pip" install -q -r python/requirements-docs.txt
	step "site"
	"$venv/bin/python" docs/site/build.py
}

cmd_demo() {
	need_go; need_python; python_env
	stamped python/requirements-demo.txt "$venv/bin/pip" install -q -r python/requirements-demo.txt
	install_package
	mkdir -p "$build/demo"
	cd "$build" && exec "$venv/bin/python" -m dynamo_go demo --out "$build/demo" "$@"
}

cmd_test() {
	need_go; need_python; test_env
	mkdir -p "$build/test"
	cmd_servers
	lint_go
	test_go
	test_interop
	install_package
	lint_python
	test_python
	cmd_docs
	other_pythons
	check_skips
}

# The servers that tests start, at the versions of servers/go.mod. The Go build cache makes it quick the second time.
cmd_servers() {
	need_go; mkdir -p "$build/servers"
	step "etcd and nats-server for the tests"
	go -C servers build -trimpath -ldflags='-s -w' -o "$build/servers/etcd" go.etcd.io/etcd/server/v3
	go -C servers build -trimpath -ldflags='-s -w' -o "$build/servers/nats-server" github.com/nats-io/nats-server/v2
}

cmd_interop() {
	need_go; need_python; test_env; mkdir -p "$build/test"
	cmd_servers
	test_interop
	install_package
	step "programs in Python, ours and Dynamo's"
	DGO_TEST_DYNAMO=$build/dynamo "$venv/bin/python" -m pytest -q -rs python/tests/test_interop.py
	grep -hE '^(---|\s+---|SKIPPED)' "$build/test/interop.log" "$build/test/interop-skips.log" || true
}

# A virtual environment for each release of Dynamo's runtime, and the tests that have it as a peer.
test_interop() {
	step "Dynamo's own releases as peers"
	local v venv installed=0
	: >"$build/test/interop-skips.log"
	for v in $DYNAMO_RELEASES; do
		venv=$build/dynamo/$v
		if [[ ! -e $venv/.installed ]]; then
			rm -rf "$venv"; python3 -m venv "$venv"
			if ! "$venv/bin/pip" install -q "ai-dynamo-runtime==$v" uvloop >"$build/test/interop-pip.log" 2>&1; then
				rm -rf "$venv"
				echo "SKIPPED interop $v: ai-dynamo-runtime==$v cannot be installed: $(tail -n 1 "$build/test/interop-pip.log")" | tee -a "$build/test/interop-skips.log"
				continue
			fi
			touch "$venv/.installed"
		fi
		installed=1
	done
	[[ $installed == 1 ]] || return 0
	DGO_TEST_DYNAMO=$build/dynamo logged interop go test -tags interop -count=1 -v -run Dynamo ./core/runtime ./core/kvrouter ./core/mockworker ./core/engineworker
	grep -E '^ok\s' "$build/test/interop.log"
}

lint_go() {
	step "gofmt, go vet, staticcheck"
	local bad; bad=$(gofmt -l core capi bench examples docs)
	[[ -z $bad ]] || die "gofmt would change: $bad"
	go vet ./...
	go vet -tags interop ./core/...
	GOBIN=$build/bin go install "$STATICCHECK"
	"$build/bin/staticcheck" ./...
	go_bench vet ./...
	(cd bench && GOFLAGS="$GOFLAGS -mod=mod" "$build/bin/staticcheck" ./...)
}

# go_bench ARGUMENTS...: go in the benchmarks' module, whose list of indirect requirements follows ours by itself.
go_bench() { local command=$1; shift; go -C bench "$command" -mod=mod "$@"; }

# Keeps a full log of each run, and when one fails shows its end, what each failed test said, and their names last.
logged() {
	local log=$build/test/$1.log; shift
	if "$@" >"$log" 2>&1; then
		return
	fi
	local failed='^\s*--- FAIL|^FAIL\s|^panic: |^fatal error: |WARNING: DATA RACE'
	tail -n 40 "$log"
	grep -E -B 40 -A 20 "$failed" "$log" | tail -n 400 || true
	grep -E "$failed" "$log" | sort | uniq -c || true
	die "failed: $* (all of it: ${log#"$root"/})"
}

test_go() {
	export DGO_TEST_PYTHON=$venv/bin/python DGO_TEST_CACHE=$build/test-cache
	step "go test -race ./..."
	logged go-race go test -race -v ./...
	grep -E '^ok\s' "$build/test/go-race.log"
	step "go test -tags invariants ./core/index (each change checked against its invariants)"
	logged go-invariants go test -tags invariants ./core/index
	grep -E '^ok\s' "$build/test/go-invariants.log"
	step "go test -tags noasm, go vet and go build for arm64 (no assembly there)"
	logged go-noasm go test -tags noasm ./core/internal/tokenids ./core/internal/xxh3 ./core/block ./core/schedule
	GOARCH=arm64 CGO_ENABLED=0 go vet ./core/...
	GOARCH=arm64 CGO_ENABLED=0 go build ./core/...
	step "go test ./core/... (allocations, memory and time limits, which the race detector disturbs)"
	logged go go test -v -run 'Alloc|Example|Memory|Hurt' ./core/...
	grep -E '^ok\s' "$build/test/go.log"
	step "routers and engines on a bad network, 200,000 events (each round ends with agreement within 10 s)"
	DGO_CHAOS_EVENTS=200000 logged go-chaos go test -count=1 -v -run BadNetwork ./core/router
	grep -E '^ok\s' "$build/test/go-chaos.log"
	step "go test in bench (how figures are gathered and merged; none is taken)"
	logged go-bench go_bench test -v ./...
	grep -E '^ok\s' "$build/test/go-bench.log"
}

lint_python() {
	step "ruff, mypy --strict"
	"$venv/bin/ruff" check python examples/python bench docs
	"$venv/bin/ruff" format --check python examples/python bench docs
	"$venv/bin/mypy" --strict python/dynamo_go python/tests examples/python
}

test_python() {
	step "pytest"
	DGO_TEST_WHEEL=$(ls "$build"/package/*.whl); export DGO_TEST_WHEEL DGO_TEST_DYNAMO=$build/dynamo
	"$venv/bin/python" -m pytest -q -rs python/tests | tee "$build/test/python.log"
}

# find_python 3.X: an interpreter of that version that runs and has headers, also one that a version manager keeps off PATH.
find_python() {
	local p shim
	shim=$(command -v "python$1" || true)
	for p in "$shim" "${shim%/shims/*}"/versions/"$1".*/bin/"python$1"; do
		[[ -x $p ]] && "$p" -c 'import os, sys, sysconfig, venv; sys.exit(not os.path.exists(sysconfig.get_paths()["include"] + "/Python.h"))' 2>/dev/null &&
			{ echo "$p"; return; }
	done
	return 1
}

# Builds and tries the package with the other Python versions at hand.
other_pythons() {
	local v p mine; mine=$("$venv/bin/python" -c 'import sys; print("3.%d" % sys.version_info.minor)')
	: >"$build/test/pythons.log"
	for v in 3.10 3.11 3.12 3.13 3.14; do
		[[ $v == "$mine" ]] && continue
		if ! p=$(find_python "$v"); then
			echo "SKIPPED python$v: no interpreter with headers on this machine" | tee -a "$build/test/pythons.log"
			continue
		fi
		step "package with Python $v"
		[[ -x $build/py$v/bin/python ]] || "$p" -m venv "$build/py$v"
		"$build/py$v/bin/pip" install -q "$(build_requirement)"
		"$build/py$v/bin/pip" install -q --no-build-isolation --no-deps --force-reinstall .
		"$build/py$v/bin/python" python/tests/smoke.py
	done
}

# Every skip must be declared in testdata/skips.txt (a pattern a line): a green run then means what it says.
check_skips() {
	step "skips"
	local line bad=0
	while IFS= read -r line; do
		if grep -qEf <(grep -vE '^(#|$)' testdata/skips.txt) <<<"$line"; then
			echo "declared: $line"
		else
			echo "UNDECLARED: $line"; bad=1
		fi
	done < <(grep -hE '^\s*(SKIPPED|--- SKIP)' "$build"/test/*.log | sed -E 's/^\s+//' | sort -u)
	[[ $bad == 0 ]] || die "a test was skipped that testdata/skips.txt does not declare"
	grep -hE '^[0-9]+ passed' "$build/test/python.log" | tail -n 1
}

cmd_bench() {
	need_go; mkdir -p "$build/bench"
	go_bench build -o "$build/bench/bench" .
	case " $* " in *" --help "* | *" -h "*) exec "$build/bench/bench" --help ;; esac
	local rows python=()
	rows=$("$build/bench/bench" --list "$@")
	if grep -qE '^(python|runtime) ' <<<"$rows"; then
		install_package
		[[ -x $build/bench/wheel/bin/python ]] || python3 -m venv "$build/bench/wheel"
		"$build/bench/wheel/bin/pip" install -q "$WHEEL"
		mkdir -p "$build/bench/wheels"; rm -f "$build"/bench/wheels/dynamo_go-*.whl
		"$venv/bin/pip" wheel -q --no-build-isolation --no-deps -w "$build/bench/wheels" .
		[[ -n $(ls "$build"/bench/wheels/ai_dynamo_runtime-*.whl 2>/dev/null) ]] ||
			"$build/bench/wheel/bin/pip" download -q --no-deps -d "$build/bench/wheels" "$WHEEL"
		python=(--python "$venv/bin/python" --wheel "$build/bench/wheel/bin/python")
	fi
	if grep -q '^c ' <<<"$rows"; then
		cmd_lib
		"$CC" -std=c99 -O2 -Wall -Wextra -Werror -I"$build" -o "$build/bench/calls" bench/c/calls.c -L"$build" -ldynamo_go -Wl,-rpath,"$build"
		export DGO_BENCH_C=$build/bench/calls
	fi
	need_cargo
	step "peers: the crates dynamo-kv-router and kv-index (a minute or two the first time)"
	(cd bench/peers && CARGO_TARGET_DIR=$build/bench/peers cargo build --release)
	step "measuring"
	"$build/bench/bench" --peers "$build/bench/peers/release/peers" "${python[@]}" "$@"
}

# The extension's tests with the address sanitizer. What leaks is told by tests of their own, without it (measures_memory of tests/kit.py): Python
# holds too much at its exit, Go's heap holds what the sanitizer cannot see, and it keeps freed memory itself.
asan_python() {
	step "extension with the address sanitizer"
	rm -rf "$build/asan"
	CFLAGS="-fsanitize=address -fno-omit-frame-pointer -g -O1" LDFLAGS=-fsanitize=address \
		"$venv/bin/pip" wheel -q --no-build-isolation --no-deps -w "$build/asan" .
	"$venv/bin/pip" install -q --no-index --no-deps --target "$build/asan/site" "$build"/asan/*.whl
	LD_PRELOAD=$("$CC" -print-file-name=libasan.so) PYTHONMALLOC=malloc PYTHONPATH=$build/asan/site \
		ASAN_OPTIONS=detect_leaks=0:allow_user_segv_handler=1:handle_segv=0:handle_sigbus=0:abort_on_error=1 \
		"$venv/bin/python" -m pytest -q -rs python/tests --ignore python/tests/test_{cli,demo,docs,examples,packaging,site,typing}.py
}

cmd_soak() {
	need_go; need_python; test_env
	cmd_servers
	local seconds=${DGO_SOAK_SECONDS:-600} file target
	while IFS=: read -r file target; do
		step "fuzz $target, $seconds s"
		go test "./$(dirname "$file")" -run '^$' -fuzz "^$target\$" -fuzztime "${seconds}s" -fuzzminimizetime 20x
	done < <(grep -roE '^func Fuzz[A-Za-z0-9]+' --include='*_test.go' core | sed 's/func //')
	step "memory within its bound"
	DGO_SOAK_BOUND_MIB=512 go test -count=1 -v -run MemoryStaysWithinItsBound ./core/router
	step "routers and engines on a bad network"
	for seed in 2 3 4 5; do
		DGO_CHAOS_EVENTS=1000000 DGO_CHAOS_SEED=$seed go test -count=1 -v -timeout 30m -run BadNetwork ./core/router
	done
	step "a million calls of each C function, in no more memory (an hour)"
	DGO_SOAK_CALLS=1000000 go test -count=1 -v -timeout 4h -run CallsLeakNothing ./capi
	step "etcd is gone for 20 s; 1,000 workers of which a tenth is replaced each second, for a minute"
	DGO_SOAK_ETCD_OUTAGE=20s DGO_SOAK_CHURN=60s go test -count=1 -v -timeout 30m -run 'WithoutEtcd|ComeAndGo' ./core/kvrouter
	step "an engine that is gone for a minute"
	DGO_SOAK_OUTAGE=60s go test -count=1 -run ComesBack ./core/feed
	step "500 streams while one engine is killed and one added every 10 s, for a minute: by the library, and through the HTTP endpoint"
	DGO_SOAK_STREAMS_SECONDS=60 go test -count=1 -v -run StreamsWhileEnginesDie ./core/fleet
	DGO_SOAK_STREAMS_SECONDS=60 go test -count=1 -v -run StreamsWhileEnginesAreKilled ./core/serve
	step "C programs with the address sanitizer; 32 threads for a minute with the thread sanitizer"
	ASAN_OPTIONS=detect_leaks=0:allow_user_segv_handler=1:handle_segv=0:handle_sigbus=0 DGO_SANITIZE=address \
		go test -count=1 -run 'TestCPrograms|TestHostileCalls' ./capi
	TSAN_OPTIONS=halt_on_error=1:handle_segv=0 DGO_SANITIZE=thread DGO_SOAK_THREADS_SECONDS=60 go test -count=1 -v -run TestManyThreads ./capi
	install_package
	asan_python
	step "2,000 streams of 200 tokens at once, through Python"
	DGO_STREAMS=2000 DGO_STREAM_TOKENS=200 "$venv/bin/python" -m pytest -q -s python/tests/test_streams.py
	step "a million calls of each Python function leak nothing (an hour)"
	GOGC=20 DGO_LEAK_CALLS=1000000 "$venv/bin/python" -m pytest -q -s python/tests/test_native.py -k leak # with GOGC, little waits for the collector
	step "race, repeated"
	DGO_TEST_PYTHON=$venv/bin/python go test -race -count=5 ./core/...
}

cmd_clean() {
	rm -rf "$build" dist "$venv" bench/peers/Cargo.lock examples/rust/target python/*.egg-info .mypy_cache .ruff_cache .pytest_cache
	rm -rf python/dynamo_go/*.so python/dynamo_go/include # of pip install -e
	find python examples bench testdata -name __pycache__ -prune -exec rm -rf {} +
}

[[ -w $root ]] || die "$root is read-only; work in a writable copy"
case ${1:-help} in
servers | lib | wheel | docs | demo | test | interop | bench | soak | clean) command=$1; shift; "cmd_$command" "$@" ;;
help | -h | --help) usage ;;
*) usage >&2; die "unknown command '$1'" ;;
esac
