# One entry per thing a person wants to do. Everything runs in .venv, made on first use.
PY := .venv/bin/python
RECIPE ?= recipes/tiny.toml
SLACK ?= 1
# Tests start thousands of processes: what these import is compiled once, also where the environment says otherwise.
test test-full soak smoke fuzz: export PYTHONDONTWRITEBYTECODE :=
# More workers than the least number of cores, since tests wait for a fifth of their time, and slow ones for more. Files
# in their order: sorted by how many tests they have, those with a single long one would come last.
PYTEST := $(PY) -m pytest --dist loadfile --no-loadscope-reorder

.PHONY: setup tools vllm quickstart test test-full test-times soak fuzz mutants lint smoke fresh bench compare results claims gpu gpu-record clean
.DEFAULT_GOAL := help

help:            ## this list
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 16

setup: .venv/.installed   ## make .venv and install what is pinned in constraints.txt

.venv/.installed: pyproject.toml constraints.txt scripts/setup.sh
	@sh scripts/setup.sh

tools:                    ## install what the sandbox's tests compare with (podman, runc...), where root and apt allow it
	@sh scripts/test-tools.sh

vllm:                     ## install vLLM for CPUs, for an interpreter of its own below ~/.cache/etude (engine.kind = "vllm")
	@sh scripts/vllm.sh

quickstart: setup         ## train a tiny agent through every stage and show that each helped
	@.venv/bin/etude run $(RECIPE)

test: setup tools         ## the tests: five minutes on two cores
	$(PYTEST) -n 3 --junitxml=.pytest_cache/test.xml -m "not slow and not gpu"

test-full: setup tools    ## the slow tests: kills, resumes, whole stages, a quarter of an hour
	$(PYTEST) -n 4 --junitxml=.pytest_cache/test-full.xml -m "slow and not soak and not gpu"

test-times: setup         ## the slowest tests of the last runs; fails above 20 s in test, 90 s in test-full [SLACK=2]
	@$(PY) scripts/test_times.py --slack $(SLACK)

soak: setup tools         ## make soak [ROOM=sandbox]: what is exhaustive, hours in all; its results go to docs/soak.md
	@$(PY) scripts/soak.py $(ROOM)

fuzz: setup               ## make fuzz [TARGET=tar] [SECONDS=600]: hostile bytes for every parser, five hours in all; exit code 1 at a break
	@$(PY) scripts/fuzz.py $(TARGET) --seconds $(or $(SECONDS),600)

mutants: setup tools      ## make mutants [N=300] [SEED=2026]: faults made in the source that no test notices, hours in all
	@$(PY) scripts/mutants.py --number $(or $(N),300) --seed $(or $(SEED),2026)

lint: setup               ## format, lint, types, architecture
	@.venv/bin/ruff format --check --quiet . || { echo "run: .venv/bin/ruff format ."; exit 1; }
	@.venv/bin/ruff check --quiet .
	@told=$$(.venv/bin/lint-imports --no-cache) || { echo "$$told"; exit 1; }
	@.venv/bin/mypy

smoke: setup              ## the whole line shrunk to minutes, with assertions
	@$(PY) scripts/smoke.py

bench: setup              ## make bench NAME=deltas [RECORD=1]: one benchmark, one JSON line last; RECORD keeps it in docs/results
	@test -n "$(NAME)" || { echo "usage: make bench NAME=...; there are: $$(ls benchmarks/[a-z]*.py benchmarks/claims/[a-z]*.py | grep -v /table.py | sed 's:benchmarks/::; s:\.py::' | tr '\n' ' ')"; exit 2; }
	@test -f "benchmarks/$(NAME).py" || { echo "there is no benchmarks/$(NAME).py"; exit 2; }
	@RECORD=$(RECORD) $(PY) benchmarks/$(NAME).py; code=$$?; \
	test -z "$(filter-out 0,$(RECORD))" || $(PY) benchmarks/results.py >&2; exit $$code

compare: setup            ## make compare REV=... NAMES="engine grading": benchmarks of an older commit and of this tree, in turn
	@test -n "$(REV)" -a -n "$(NAMES)" || { echo 'usage: make compare REV=HEAD~1 NAMES="engine grading" [ROUNDS=1]'; exit 2; }
	@$(PY) scripts/compare.py $(REV) $(NAMES) --rounds $(or $(ROUNDS),1)

results: setup            ## docs/results.md, from the rows that benchmarks recorded
	@$(PY) benchmarks/results.py

claims: setup             ## the table of docs/claims.md and the README's verdicts, from docs/claims/rows.jsonl alone
	@$(PY) benchmarks/claims/table.py

fresh:                    ## make fresh [WHO=root|user] [WHAT=test|quickstart]: both commands on a bare Debian tree
	@sh scripts/fresh.sh $(or $(WHO),both) $(or $(WHAT),both)

gpu:                      ## what needs a GPU, with the torch that is there
	@sh benchmarks/gpu/run.sh

gpu-record: setup         ## make gpu-record FROM=gpu.jsonl: keep in docs/results what make gpu printed, here or elsewhere
	@test -n "$(FROM)" || { echo "usage: make gpu > gpu.jsonl, then: make gpu-record FROM=gpu.jsonl"; exit 2; }
	@$(PY) benchmarks/gpu/record.py "$(FROM)"

clean:                    ## remove .venv and caches, keep runs
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
