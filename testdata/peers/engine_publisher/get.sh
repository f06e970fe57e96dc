#!/bin/bash
# get.sh VERSION: downloads the sglang wheel with pip and keeps the few files its event publisher needs, under
# $WIRE_SRC/sglang-VERSION. PYTHON names the interpreter.
set -euo pipefail
v=$1; out=${WIRE_SRC:?names the folder for the sources}/sglang-$v; python=${PYTHON:-python3}
[ -e "$out/.ok" ] && exit 0
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
get() { "$python" -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: -d "$tmp" "$@" "sglang==$v"; }
# Nothing of the wheel is run that is not plain Python, so one for another interpreter will do.
get 2>/dev/null || get --python-version 3.11 --implementation cp --platform manylinux_2_34_x86_64 --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 --platform any
mkdir -p "$out"
"$python" - "$tmp" "$out" <<'PY'
import glob, sys, zipfile
wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0])
for name in ("sglang/srt/disaggregation/kv_events.py", "sglang/version.py"):
    if name in wheel.namelist():
        wheel.extract(name, sys.argv[2])
PY
touch "$out/.ok"
