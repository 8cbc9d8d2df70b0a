#!/usr/bin/env bash
# Octavo in a real cluster on this machine:  deploy/kind/up.sh FOLDER
# FOLDER holds a folder named `model` with a checkpoint. Needs docker, kind, kubectl and `octavo`.
# Take it down with: kind delete cluster --name octavo
set -euo pipefail

if [ $# -ne 1 ] || [ ! -d "$1/model" ]; then
    echo "usage: $0 FOLDER, where FOLDER/model is a checkpoint" >&2
    exit 2
fi
models=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
for program in docker kind kubectl; do
    command -v "$program" >/dev/null || { echo "$program is not installed" >&2; exit 2; }
done

docker build -f deploy/image/Dockerfile --target router -t octavo-router:0.1.0 .
docker build -f deploy/image/Dockerfile --target worker-cpu -t octavo-worker-cpu:0.1.0 \
    --build-arg "TORCH_INDEX=${TORCH_INDEX:-}" .

sed "s#MODELS#$models#" deploy/kind/cluster.yaml | kind create cluster --name octavo --config -
kind load docker-image --name octavo octavo-router:0.1.0 octavo-worker-cpu:0.1.0
kubectl apply -k deploy/kind
kubectl --namespace octavo rollout status deployment/octavo-router --timeout 900s

kubectl --namespace octavo port-forward service/octavo-router 50051 >/dev/null &
trap 'kill $!' EXIT
sleep 2
octavo generate --address 127.0.0.1:50051 "What is a paged KV cache?"
