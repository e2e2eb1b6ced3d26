#!/usr/bin/env bash
# Compile Horovod for the torch of this environment and install it there: minutes the first time (`make horovod`).
#
# Horovod has no wheels, and its last release predates torch's present C++ standard, so two CMake files are edited. The
# wheel is kept in $HOROVOD_WHEELS (default: ~/.cache/scalestudy), by torch, Python, compiler, MPI and NCCL.
set -euo pipefail

version=0.28.1
hash=sha256:92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0
python=${PYTHON:-python}
pip=("$python" -m pip --disable-pip-version-check --quiet)
compiler=$(command -v "${CXX:-g++}" || command -v c++) || {
    echo "make horovod: there is no C++ compiler: install one (Debian: build-essential), then run it again" >&2
    exit 1
}

options=(HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1 MAKEFLAGS="-j$(nproc)")
with=""
if command -v mpicxx >/dev/null; then options+=(HOROVOD_WITH_MPI=1) with+=-mpi; else options+=(HOROVOD_WITHOUT_MPI=1); fi
nccl=""
if command -v nvcc >/dev/null && { [ -n "${HOROVOD_NCCL_HOME:-}" ] || [ -e /usr/include/nccl.h ]; }; then
    nccl=1 with+=-nccl
    options+=(HOROVOD_GPU_OPERATIONS=NCCL)
fi
built_for=$("$python" -c 'import sysconfig, torch; print(torch.__version__, sysconfig.get_config_var("SOABI"), sep="-")')
wheels=${HOROVOD_WHEELS:-${XDG_CACHE_HOME:-$HOME/.cache}/scalestudy}/horovod-$version-torch$built_for-g$("$compiler" -dumpfullversion)$with

if ! ls "$wheels"/horovod-*.whl >/dev/null 2>&1; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    # Newer setuptools lack pkg_resources, newer CMakes the policies that Horovod sets.
    "${pip[@]}" install --target "$work/tools" 'setuptools<81' wheel packaging 'cmake<4'
    export PYTHONPATH=$work/tools${PYTHONPATH:+:$PYTHONPATH} PATH=$work/tools/bin:$PATH
    echo "horovod==$version --hash=$hash" >"$work/requirement.txt"
    "${pip[@]}" download --no-deps --no-binary :all: --no-build-isolation --require-hashes --dest "$work" -r "$work/requirement.txt"
    tar -xf "$work/horovod-$version.tar.gz" -C "$work"
    source=$work/horovod-$version
    sed -i 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 20/' "$source/CMakeLists.txt" "$source/horovod/torch/CMakeLists.txt"
    sed -i "s/'RelWithDebInfo'/'Release'/" "$source/setup.py"
    if [ -z "$nccl" ]; then  # a machine may have half of CUDA
        sed -i 's/torch.version.cuda is not None/False/' "$source/cmake/Modules/FindPytorch.cmake"
    fi
    mkdir -p "$wheels"
    env "${options[@]}" "${pip[@]}" wheel --no-deps --no-build-isolation --wheel-dir "$work/wheel" "$source"
    mv "$work"/wheel/horovod-*.whl "$wheels"
fi
"${pip[@]}" install --no-deps --no-index --force-reinstall "$wheels"/horovod-*.whl
"$python" -c 'import horovod.torch, torch; print(f"Horovod {horovod.__version__} for torch {torch.__version__}")'
