PYTHON ?= python3
BIN = .venv/bin
PROTOS = $(shell find protos -name '*.proto')
PROTOC = $(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=$(1) --pyi_out=$(1) --grpc_python_out=$(1) $(PROTOS)
FOLDERS = octavo router prefill_worker decode_worker kernels tests bench simulator deploy

.PHONY: install protos format check test slow charts manifests cluster images metrics exact kernels simulate bench bench-table bench-serve bench-generate bench-llm bench-llama bench-paper bench-rag bench-gpu bench-shared-prefix bench-relay bench-metrics bench-http bench-overhead bench-roof bench-ttft bench-tail bench-start bench-prompt-lookup

install:  ## make .venv with everything development needs
	$(PYTHON) -m venv .venv && $(BIN)/pip install -q --upgrade pip && $(BIN)/pip install -q -c constraints.txt -e '.[dev]'

protos:  ## generate the stubs
	$(call PROTOC,.)

format:
	$(BIN)/ruff format $(FOLDERS) && $(BIN)/ruff check --fix $(FOLDERS)

check:  ## lint, types, protos; no tests
	$(BIN)/ruff format --check $(FOLDERS) && $(BIN)/ruff check $(FOLDERS)
	$(BIN)/mypy
	$(BIN)/mypy simulator
	$(BIN)/buf lint
	rm -rf build/stubs && mkdir -p build/stubs && $(call PROTOC,build/stubs)
	diff -r build/stubs/octavo/inference octavo/inference -x '__pycache__' && diff -r build/stubs/octavo/internal octavo/internal -x '__pycache__'

test:
	$(BIN)/python -m pytest $(ARGS)

charts:  ## render every values file, validate, check policies and overlays, lint the Dockerfile
	$(BIN)/python -m pytest -m "slow or not slow" --ignore tests/charts/test_local_cluster.py tests/charts $(ARGS)

manifests:  ## renew deploy/manifests from the chart
	$(BIN)/python deploy/render.py --write

cluster:  ## start the rendered manifests as local processes, roll and scale them under load; root
	$(BIN)/python -m pytest -m slow -n 0 -s tests/charts/test_local_cluster.py $(ARGS)

images:  ## the Dockerfile's steps in a bare root: ROOT=debootstrap's, TARGET=router; root
	$(BIN)/python deploy/image/rehearse.py $(ROOT) build/images $(TARGET) $(ARGS)

exact:  ## the whole exactness matrix on the real model, slow
	$(BIN)/python -m pytest -m slow --timeout 3600 tests/exact tests/end_to_end/test_real_model.py $(ARGS)

metrics:  ## a real Prometheus over a real service: every query of dashboard and alerts; promtool
	$(BIN)/python -m pytest -m "slow or not slow" -n 0 tests/metrics $(ARGS)

slow:  ## the tests that are too slow for every change, but for `make exact` and `make cluster`
	$(BIN)/python -m pytest -m slow --timeout 3600 --ignore tests/exact --ignore tests/charts/test_local_cluster.py $(ARGS)

kernels:  ## registers, spills and shared memory of every Triton variant
	$(BIN)/python -m octavo.kernels.compile_table $(ARGS)

simulate:  ## project the service to many workers; ARGS=--validate measures first
	$(BIN)/python -m simulator $(ARGS)

VLLM_PEER = $(if $(VLLM),--vllm $(VLLM))
RESULT = --json bench/results/$(1).json --plot bench/results/$(1).png

bench:  ## every figure that has a floor, then one table; VLLM=DIR LLAMA=DIR are the peers' folders
	-$(BIN)/python bench/serve.py --int8 $(VLLM_PEER) $(call RESULT,serve)
	-$(BIN)/python bench/rag.py --int8 $(VLLM_PEER) $(call RESULT,rag)
	-$(BIN)/python bench/llm.py $(VLLM_PEER) $(call RESULT,llm)
	-$(BIN)/python bench/generate.py $(VLLM_PEER) $(call RESULT,generate)
	$(if $(LLAMA),-$(BIN)/python bench/llama.py --llama $(LLAMA) $(call RESULT,llama))
	-$(BIN)/python bench/tail.py $(VLLM_PEER) $(call RESULT,tail)
	-$(BIN)/python bench/ttft.py $(VLLM_PEER) $(call RESULT,ttft)
	-$(BIN)/python bench/start.py $(VLLM_PEER) $(call RESULT,start)
	-$(BIN)/python bench/relay.py $(call RESULT,relay)
	-$(BIN)/python bench/http_door.py $(VLLM_PEER) $(call RESULT,http)
	-$(BIN)/python bench/overhead.py $(call RESULT,overhead)
	-$(BIN)/python bench/roof.py $(call RESULT,roof)
	-$(BIN)/python bench/paper.py $(call RESULT,paper)
	-$(BIN)/python bench/shared_prefix.py $(call RESULT,shared_prefix)
	-$(BIN)/python bench/prompt_lookup.py $(call RESULT,prompt_lookup)
	$(BIN)/python bench/table.py

bench-table:  ## the figures of bench/results/*.json as one table and one plot
	$(BIN)/python bench/table.py $(ARGS)

bench-serve:  ## output tokens/s beside vLLM's; ARGS="--vllm DIR --int8"
	$(BIN)/python bench/serve.py $(ARGS)

bench-generate:  ## beside transformers: generate, continuous batching, one after another
	$(BIN)/python bench/generate.py $(ARGS)

bench-llm:  ## LLM in process beside vLLM's; ARGS="--vllm DIR"
	$(BIN)/python bench/llm.py $(ARGS)

bench-llama:  ## beside llama.cpp's server, one core each; ARGS="--llama DIR"
	$(BIN)/python bench/llama.py $(ARGS)

bench-paper:  ## the PagedAttention paper's tables, its figures beside ours
	$(BIN)/python bench/paper.py $(ARGS)

bench-rag:  ## one document, many questions
	$(BIN)/python bench/rag.py $(ARGS)

bench-prompt-lookup:  ## guessed tokens: tokens a step, throughput with and without
	$(BIN)/python bench/prompt_lookup.py $(ARGS)

bench-gpu:  ## every GPU kernel against float64, this GPU's ceilings and others' kernels
	$(BIN)/python bench/gpu $(ARGS)

bench-shared-prefix:  ## decode attention over shared blocks, kernel alone
	$(BIN)/python bench/shared_prefix.py $(ARGS)

bench-relay:  ## the router alone: tokens and requests a second of one core
	$(BIN)/python bench/relay.py $(ARGS)

bench-overhead:  ## work around the model: of a step, and served over a bare loop
	$(BIN)/python bench/overhead.py $(ARGS)

bench-roof:  ## prefill over a GEMM, a step over streaming its weights
	$(BIN)/python bench/roof.py $(ARGS)

bench-metrics:  ## what metrics cost a step, and a scrape
	$(BIN)/python bench/metrics_cost.py $(ARGS)

bench-http:  ## HTTP beside gRPC, and our load beside `vllm bench serve`; ARGS="--vllm DIR"
	$(BIN)/python bench/http_door.py $(ARGS)

bench-ttft:  ## first tokens: over vLLM's, warm over cold, hand-off, cache; ARGS="--vllm DIR"
	$(BIN)/python bench/ttft.py $(ARGS)

bench-tail:  ## p99 ITL while long prompts arrive; ARGS="--vllm DIR"
	$(BIN)/python bench/tail.py $(ARGS)

bench-start:  ## process start to first token; ARGS="--vllm DIR"
	$(BIN)/python bench/start.py $(ARGS)
