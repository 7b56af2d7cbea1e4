#!/bin/sh
# install.sh STAGE FOLDER WHEELS LOCK: the Python part of an image, as a virtual environment in FOLDER.
#
# STAGE is router (no torch), cpu or gpu. WHEELS holds the wheels of SpecMesh, LOCK the versions of everything else.
# TORCH_INDEX is where the CPU build of torch comes from; empty means the index that pip is set to.
set -eu
stage=$1 folder=$2 wheels=$3 lock=$4

case $stage in
router) extras=otel ;;
cpu) extras=model,otel ;;
gpu) extras=gpu,otel ;;
*)
  echo "install.sh: no stage $stage" >&2
  exit 2
  ;;
esac

python3 -m venv "$folder"
in_venv() {
  "$folder/bin/python" -m pip --disable-pip-version-check "$@"
}

# Only what is asked for: what comes with every environment is old and used by nothing here.
in_venv uninstall --quiet --yes setuptools

if [ "$stage" = cpu ]; then
  version=$(sed -n 's/^torch==//p' "$lock")
  in_venv install --quiet --no-compile --no-deps ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "torch==$version+cpu"
fi
# By path: a package of the same name elsewhere must not come instead.
in_venv install --quiet --no-compile -c "$lock" "$wheels"/specmesh_client-*.whl "$(echo "$wheels"/specmesh-*.whl)[$extras]"
in_venv check
in_venv uninstall --quiet --yes pip

find "$folder/lib" -type d -name tests -prune -exec rm -r {} +
if [ "$stage" = router ]; then
  rm -r "$folder"/lib/python*/site-packages/specmesh/draft/weights
fi
